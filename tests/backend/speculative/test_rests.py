"""A drafter that fails costs nobody an answer, and is left alone for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.engine import Engine
from backend.speculative.rests import FIRST_REST_STEPS, LONGEST_REST_STEPS, Rests
from backend.speculative.speculator import MISS_AT_LEAST_EVERY_STEPS, Speculator
from backend.types import Draft, Sequence
from tests.backend.engine.fake_runner import VOCAB_SIZE, FakeRunner, expected, next_token
from tests.backend.engine.test_engine import ask, drain, text
from tests.backend.speculative.drafters import GuessingDrafter
from tests.backend.speculative.sequences import running


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


def test_one_that_failed_is_left_alone_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Once(Failing):
        def _maybe(self, method: str) -> None:
            if self.num_calls == 1:
                self._every = 1000
            super()._maybe(method)

    drafter = Once("propose")
    config = SpeculativeConfig(drafter="guessing", max_tokens=5, adaptive=False)
    speculator = Speculator(config, [drafter])
    sequence, other = running([1, 2], [3]), running([4, 5], [6])
    speculator.add(sequence)
    speculator.add(other)
    drafter.sequences |= {sequence, other}
    with caplog.at_level(logging.ERROR):
        assert speculator.propose(2) == {}
    assert "guessing failed (MemoryError): left alone for 256 steps" in caplog.text
    assert not drafter.sequences, "nothing of what it kept is to be trusted"
    for _ in range(FIRST_REST_STEPS - 1):
        assert speculator.propose(2) == {}
    assert drafter.num_calls == 1
    found = [speculator.propose(2) for _ in range(2 * MISS_AT_LEAST_EVERY_STEPS)]
    assert any(found) and drafter.num_calls > 1


def test_nobody_is_kept_from_stopping() -> None:
    rests = Rests()
    with pytest.raises(KeyboardInterrupt), rests.attempt("it"):
        raise KeyboardInterrupt
    assert not rests.names


def test_each_rest_is_longer_up_to_a_limit() -> None:
    rests = Rests()
    lengths: list[int] = []
    for _ in range(8):
        with rests.attempt("it"):
            raise ValueError("again")
        assert rests.names == {"it"}
        lengths.append(0)
        while rests.names:
            rests.begin_step()
            lengths[-1] += 1
    assert lengths[:2] == [FIRST_REST_STEPS, 2 * FIRST_REST_STEPS] and lengths[-1] == LONGEST_REST_STEPS
