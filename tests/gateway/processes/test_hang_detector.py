"""Hung is silent without work; a long step is not hung."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gateway.processes import hang_detector as hang
from gateway.processes.hang_detector import HUNG_AFTER_S, HUNG_BUSY_AFTER_S, HangDetector

SILENT = hang.SILENT_AFTER_S + 1


class Machine:
    """A process whose use of the processor the test decides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.cpu_s = 0.0
        self.waits = False
        self.detector = HangDetector()
        monkeypatch.setattr(hang, "_usage", lambda pid: (self.cpu_s, self.waits))

    def look(self, age_s: float, works: bool = False) -> bool:
        self.now_s += 0.5
        self.cpu_s += 0.5 if works else 0.0
        return self.detector.poll(1, age_s, self.now_s)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(monkeypatch)
    assert not made.look(0.0)
    return made


def test_silent_and_idle_is_hung_soon(machine: Machine) -> None:
    looks = [machine.look(SILENT) for _ in range(6)]
    assert looks.index(True) * 0.5 == pytest.approx(HUNG_AFTER_S)


def test_idle_with_heartbeat_is_fine(machine: Machine) -> None:
    assert not any(machine.look(0.4) for _ in range(100))


def test_long_step_is_fine_and_endless_loop_is_not(machine: Machine) -> None:
    looks = [machine.look(SILENT, works=True) for _ in range(300)]
    assert looks.index(True) * 0.5 == pytest.approx(HUNG_BUSY_AFTER_S, abs=1)


def test_waiting_for_a_disk_or_a_processor_is_work(machine: Machine) -> None:
    machine.waits = True
    assert not any(machine.look(SILENT) for _ in range(20))


def test_a_pause_that_ends_is_forgotten(machine: Machine) -> None:
    for _ in range(5):
        assert not machine.look(SILENT)
        assert not machine.look(0.1)


def test_reset_begins_anew(machine: Machine) -> None:
    while not machine.look(SILENT):
        pass
    machine.detector.reset()
    assert not machine.look(SILENT)


def test_a_starved_process_waits_and_a_stopped_one_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            states = set()
            while True not in states:  # from its start it may wait for the disk or for nothing
                states.add((hang._usage(busy.pid) or (0.0, False))[1])
            busy.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, busy.pid, os.WSTOPPED)
            assert hang._usage(busy.pid) is not None and not hang._usage(busy.pid)[1]  # type: ignore[index]
        finally:
            busy.kill()


def test_usage_of_a_real_process() -> None:
    usage = hang._usage(os.getpid())
    assert usage is None or usage[0] > 0
    assert hang._usage(2**22 + 1) is None
