"""Exponential backoff, and that a failing drafter costs no request anything but speed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.engine import Engine
from backend.speculative import MAX_DOUBLINGS, PAUSE_STEPS
from backend.speculative.backoff import Backoff, FailureGuard
from backend.speculative.speculator import Speculator
from backend.types import Draft, Sequence
from tests.backend.engine.fake_runner import VOCAB_SIZE, FakeRunner, expected, next_token
from tests.backend.engine.test_engine import ask, drain, text
from tests.backend.speculative.drafters import GuessingDrafter
from tests.backend.speculative.sequences import running


def pause_after_failure(backoff: Backoff, step: int) -> int:
    """Steps until it is no longer paused."""
    pause = backoff.fail(step)
    assert all(backoff.is_paused(later) for later in range(step + 1, step + 1 + pause))
    assert not backoff.is_paused(step + 1 + pause)
    return pause


def test_pauses_double_up_to_a_limit_and_shrink_with_success() -> None:
    backoff, step = Backoff(64), 0
    pauses = []
    for _ in range(8):
        pauses.append(pause_after_failure(backoff, step))
        step += pauses[-1] + 1
    lengths = [64 << min(n, MAX_DOUBLINGS) for n in range(8)]
    assert all(length <= pause + 1 <= 2 * length for pause, length in zip(pauses, lengths, strict=True))
    backoff.succeed()
    assert not backoff.is_paused(step)
    assert pause_after_failure(backoff, step) < lengths[-1]


@given(first=st.sampled_from([1, 64]), steps=st.lists(st.integers(0, 300), min_size=2, max_size=2))
def test_pauses_of_equal_length_end_in_the_same_step(first: int, steps: list[int]) -> None:
    one, other = sorted(steps)
    early, late = Backoff(first), Backoff(first)
    ends = [one + 1 + early.fail(one), other + 1 + late.fail(other)]
    assert all(end % first == 0 and end > step for end, step in zip(ends, (one, other), strict=True))
    assert other - one >= first or ends[1] - ends[0] in (0, first)


def test_a_guard_logs_a_failure_and_pauses_its_callee(caplog: pytest.LogCaptureFixture) -> None:
    guard = FailureGuard("it")
    with caplog.at_level(logging.ERROR):
        assert guard.call(1, int, "no number") is None
    assert "it failed (ValueError): paused for" in caplog.text
    assert guard.is_paused(2) and not guard.is_paused(2 * PAUSE_STEPS + 1)
    assert guard.call(2, int, "7") == 7


def test_a_guard_does_not_keep_anybody_from_stopping() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    guard = FailureGuard("it")
    with pytest.raises(KeyboardInterrupt):
        guard.call(1, interrupt)
    assert not guard.is_paused(2)


class Failing(GuessingDrafter):
    """Knows what comes, and raises in one of its methods, some of the time."""

    def __init__(self, method: str, every: int = 1) -> None:
        super().__init__(next_token, VOCAB_SIZE, skill=0.7)
        self.num_calls = 0
        self._method, self._every = method, every

    def propose(self, sequences: list[Sequence], ks: list[int]) -> Iterable[Draft]:
        self._maybe("propose")
        return super().propose(sequences, ks)

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        self._maybe("observe")
        super().observe(sequence, num_drafted, num_accepted)

    def forget(self, sequence: Sequence) -> None:
        super().forget(sequence)
        self._maybe("forget")

    def _maybe(self, method: str) -> None:
        if method == self._method:
            self.num_calls += 1
            if self.num_calls % self._every == 0:
                raise MemoryError("nothing left")


@pytest.mark.parametrize("method", ["propose", "observe", "forget"])
@pytest.mark.parametrize("every", [1, 4])
def test_answers_are_those_without_drafts(method: str, every: int) -> None:
    drafter = Failing(method, every)
    options = SpeculativeConfig(drafter="guessing", max_tokens=5, adaptive=False)
    config = EngineConfig(
        model="fake", checkpoint="/none", max_running=4, max_batch_tokens=64, speculative=options
    )
    engine = Engine(config, FakeRunner(), drafters=[drafter])
    prompts = {str(i): [i + 3, *range(20, 40 - i)] for i in range(6)}
    for name, prompt in prompts.items():
        engine.add(ask(name, prompt, 30))
    outputs = drain(engine)
    assert {name: text(outputs[name]) for name in prompts} == {
        name: expected(prompt, 30) for name, prompt in prompts.items()
    }
    assert drafter.num_calls >= every and not drafter.sequences


def test_a_drafter_that_failed_keeps_nothing_and_comes_back() -> None:
    class Once(Failing):
        def _maybe(self, method: str) -> None:
            if self.num_calls == 1:
                self._every = 1000
            super()._maybe(method)

    drafter = Once("propose")
    speculator = Speculator(SpeculativeConfig(drafter="guessing", max_tokens=5, adaptive=False), [drafter])
    sequences = [running([1, 2], [3]), running([4, 5], [6])]
    for sequence in sequences:
        speculator.add(sequence)
    drafter.sequences |= set(sequences)
    assert speculator.propose(2) == {}
    assert not drafter.sequences, "what it kept may be wrong"
    for _ in range(PAUSE_STEPS - 1):
        assert speculator.propose(2) == {}
    assert drafter.num_calls == 1
    assert any(speculator.propose(2) for _ in range(PAUSE_STEPS + 1)) and drafter.num_calls > 1


def test_failures_that_are_far_apart_are_not_in_a_row() -> None:
    def fail() -> None:
        raise RuntimeError

    guard = FailureGuard("drafter 'x'")
    longest = PAUSE_STEPS << MAX_DOUBLINGS
    for step in (1000, 3000 + 4 * longest, 5000 + 8 * longest):
        guard.call(step, fail)
        assert not guard.is_paused(step + 2 * PAUSE_STEPS)
