"""Silent and idle is hung; a long step is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gateway.processes import hang_detector
from gateway.processes.hang_detector import HUNG_AFTER_S, HUNG_BUSY_AFTER_S, HangDetector

SILENT = hang_detector.SILENT_AFTER_S + 1


class Machine:
    """A process whose CPU use is set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.cpu_s = 0.0
        self.waits = False
        self.detector = HangDetector()
        monkeypatch.setattr(hang_detector, "_usage", lambda pid: (self.cpu_s, self.waits))

    def sample(self, age_s: float, works: bool = False) -> bool:
        self.now_s += 0.5
        self.cpu_s += 0.5 if works else 0.0
        return self.detector.poll(1, age_s, self.now_s)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(monkeypatch)
    assert not made.sample(0.0)
    return made


def test_silent_and_idle_is_hung_soon(machine: Machine) -> None:
    samples = [machine.sample(SILENT) for _ in range(6)]
    assert samples.index(True) * 0.5 == pytest.approx(HUNG_AFTER_S)


def test_idle_with_heartbeat_is_fine(machine: Machine) -> None:
    assert not any(machine.sample(0.4) for _ in range(100))


def test_long_step_is_fine_and_endless_loop_is_not(machine: Machine) -> None:
    samples = [machine.sample(SILENT, works=True) for _ in range(300)]
    assert samples.index(True) * 0.5 == pytest.approx(HUNG_BUSY_AFTER_S, abs=1)


def test_waiting_for_a_disk_or_a_cpu_is_work(machine: Machine) -> None:
    machine.waits = True
    assert not any(machine.sample(SILENT) for _ in range(20))


def test_a_short_silence_is_forgotten(machine: Machine) -> None:
    for _ in range(5):
        assert not machine.sample(SILENT)
        assert not machine.sample(0.1)


def test_reset_forgets_all_samples(machine: Machine) -> None:
    while not machine.sample(SILENT):
        pass
    machine.detector.reset()
    assert not machine.sample(SILENT)


def test_a_starved_process_waits_and_a_stopped_one_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            states = set()
            while True not in states:  # at its start it may wait for the disk or for nothing
                states.add((hang_detector._usage(busy.pid) or (0.0, False))[1])
            busy.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, busy.pid, os.WSTOPPED)
            assert hang_detector._usage(busy.pid) is not None and not hang_detector._usage(busy.pid)[1]  # type: ignore[index]
        finally:
            busy.kill()


def test_usage_of_a_real_process() -> None:
    usage = hang_detector._usage(os.getpid())
    assert usage is None or usage[0] > 0
    assert hang_detector._usage(2**22 + 1) is None
