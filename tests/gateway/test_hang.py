"""Hung is silent without work; a long step is not hung."""

from __future__ import annotations

import pytest

from gateway import hang
from gateway.hang import HUNG_AFTER_S, HUNG_BUSY_AFTER_S, HangDetector

SILENT = hang.SILENT_AFTER_S + 1


class Machine:
    """A process whose use of the processor the test decides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.cpu_s = 0.0
        self.on_disk = False
        self.detector = HangDetector()
        monkeypatch.setattr(hang, "_usage", lambda pid: (self.cpu_s, self.on_disk))

    def look(self, age_s: float, works: bool = False) -> bool:
        self.now_s += 0.5
        self.cpu_s += 0.5 if works else 0.0
        return self.detector.is_hung(1, age_s, self.now_s)


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


def test_waiting_for_the_disk_is_work(machine: Machine) -> None:
    machine.on_disk = True
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


def test_usage_of_a_real_process() -> None:
    import os

    usage = hang._usage(os.getpid())
    assert usage is None or usage[0] > 0
    assert hang._usage(2**22 + 1) is None
