"""Drafts on the way through scheduler, KV memory and engine, with a model that reads its context back."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.engine import Engine
from backend.engine.runner_protocol import StepResult
from backend.types import Plan, Request, SamplingParams, StepOutput
from tests.backend.engine.fake_runner import EOS, VOCAB_SIZE, FakeRunner, expected, next_token
from tests.backend.speculative.drafters import GuessingDrafter


def new_engine(
    runner: FakeRunner, drafter: GuessingDrafter, max_tokens: int = 4, **changes: object
) -> Engine:
    values: dict[str, object] = {"max_running": 8, "max_batch_tokens": 64, "max_queue": 64}
    config = EngineConfig(
        model="fake",
        checkpoint="/none",
        speculative=SpeculativeConfig(drafter=drafter.name, max_tokens=max_tokens, adaptive=False),
        **(values | changes),  # type: ignore[arg-type]
    )
    return Engine(config, runner, drafters=[drafter])


def guessing(skill: float, seed: int = 0) -> GuessingDrafter:
    return GuessingDrafter(next_token, VOCAB_SIZE, skill, seed)


def ask(request_id: str, prompt: list[int], max_tokens: int = 8, **params: object) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    return Request(request_id=request_id, prompt_token_ids=prompt, params=sampling)


def drain(engine: Engine) -> list[StepOutput]:
    outputs: list[StepOutput] = []
    while engine.has_work:
        outputs += engine.step()
        engine.scheduler.check_invariants()
    return outputs


def text(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_right_drafts_give_several_tokens_per_step() -> None:
    drafter = guessing(1.0)
    engine = new_engine(FakeRunner(), drafter)
    engine.add(ask("a", [5, 6, 7], 11, ignore_eos=True))
    outputs = drain(engine)
    assert text(outputs) == expected([5, 6, 7], 11)
    assert len(outputs) < 7 and outputs[-1].finish_reason == "length"
    assert sum(output.num_accepted for output in outputs) == 11 - len(outputs)
    assert not drafter.sequences and drafter.observed


def test_drafts_of_others_are_not_those_of_the_prediction() -> None:
    def tally(prediction: list[int]) -> tuple[int, int, int, int]:
        engine = new_engine(FakeRunner(), guessing(1.0))
        request = ask("a", [5, 6, 7], 11, ignore_eos=True)
        engine.add(msgspec.structs.replace(request, prediction_token_ids=prediction))
        counts = [
            (o.num_drafted, o.num_accepted, o.num_predicted, o.num_predicted_accepted) for o in drain(engine)
        ]
        return tuple(map(sum, zip(*counts, strict=True)))  # type: ignore[return-value]

    drafted, accepted, *predicted = tally([VOCAB_SIZE - 1] * 9)
    assert drafted >= accepted > 0 and predicted == [0, 0]
    drafted, accepted, *predicted = tally(expected([5, 6, 7], 11))
    assert predicted == [drafted, accepted] and accepted > 5, "also those of the last step"


def test_wrong_drafts_leave_no_trace() -> None:
    drafter = guessing(0.0)
    engine = new_engine(FakeRunner(), drafter)
    prompt = [5] * 14
    engine.add(ask("a", prompt, 30, ignore_eos=True))
    while engine.has_work:
        engine.step()
        for sequence in engine.scheduler._running.values():
            assert len(sequence.pages) == -(-sequence.num_computed_tokens // 16), "pages of rejected drafts"
            assert sequence.num_uncomputed_tokens == 1
    assert any(drafted for drafted, _ in drafter.observed)
    engine.add(ask("b", prompt + expected(prompt, 30), 4))
    outputs = drain(engine)
    assert outputs[0].num_cached_tokens == 32, "only what was accepted is found again"
    assert text(outputs) == expected(prompt + expected(prompt, 30), 4)


def test_a_stop_token_inside_an_accepted_draft_ends_there() -> None:
    tokens = expected([9, 9], 12)
    engine = new_engine(FakeRunner(), guessing(1.0), max_tokens=8)
    engine.add(ask("a", [9, 9], 12, stop_token_ids=(tokens[3],)))
    outputs = drain(engine)
    assert text(outputs) == tokens[:3]
    assert outputs[-1].stop_token_id == tokens[3] and outputs[-1].finish_reason == "stop"


def test_the_last_tokens_are_not_drafted_past_max_tokens() -> None:
    runner = FakeRunner()
    engine = new_engine(runner, guessing(1.0), max_tokens=8)
    engine.add(ask("a", [1, 2], 3, ignore_eos=True))
    assert len(text(drain(engine))) == 3
    assert max(chunk.end for plan in runner.plans for chunk in plan.chunks) <= 2 + 3 - 1


def test_a_full_step_has_no_room_for_drafts() -> None:
    runner = FakeRunner()
    engine = new_engine(runner, guessing(1.0), max_tokens=8, max_batch_tokens=16, max_running=4)
    for name in "abcd":
        engine.add(ask(name, [ord(name)], 20, ignore_eos=True))
    drain(engine)
    assert max(plan.num_tokens for plan in runner.plans) <= 16


def test_no_sequence_is_preempted_for_drafts() -> None:
    def preemptions(skill: float | None) -> int:
        engine = new_engine(FakeRunner(num_pages=6), guessing(skill or 0.0), 0 if skill is None else 12)
        for name in "abc":
            engine.add(ask(name, [ord(name)], 31, ignore_eos=True))
        drain(engine)
        return engine.scheduler.preemptions_total

    assert preemptions(None) == 0
    assert preemptions(0.0) == 0 and preemptions(1.0) == 0


def test_a_failing_step_is_run_again_without_drafts() -> None:
    class Fragile(FakeRunner):
        def run(self, plan: Plan) -> StepResult:
            if plan.num_drafts:
                raise RuntimeError("no drafts here")
            return super().run(plan)

    engine = new_engine(Fragile(), guessing(1.0))
    engine.add(ask("a", [5, 6, 7], 11, ignore_eos=True))
    assert text(drain(engine)) == expected([5, 6, 7], 11)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_pages=st.sampled_from([10, 16, 64]),
    budget=st.sampled_from([16, 40, 128]),
    skill=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    k=st.sampled_from([1, 3, 20]),
)
def test_any_mix_of_add_abort_and_preemption_gives_the_same_text(
    seed: int, num_pages: int, budget: int, skill: float, k: int
) -> None:
    rng = random.Random(seed)
    runner = FakeRunner(num_pages=num_pages, max_model_tokens=120)
    engine = new_engine(runner, guessing(skill, seed), k, max_batch_tokens=budget)
    shared = [rng.randrange(10, 1000) for _ in range(64)]
    wanted: dict[str, list[int]] = {}
    got: dict[str, list[int]] = {}
    for number in range(40):
        if rng.random() < 0.5:
            prompt = shared[: rng.randrange(65)] + [
                rng.randrange(10, 1000) for _ in range(rng.randrange(1, 30))
            ]
            max_tokens = rng.randrange(1, 25)
            engine.add(ask(str(number), prompt, max_tokens))
            wanted[str(number)] = expected(prompt, max_tokens)
        if wanted and rng.random() < 0.1:
            victim = rng.choice(sorted(wanted))
            if engine.abort(victim):
                del wanted[victim]
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.token_ids)
        engine.scheduler.check_invariants()
    for output in drain(engine):
        got.setdefault(output.request_id, []).extend(output.token_ids)
    assert {key: got.get(key, []) for key in wanted} == wanted
    assert not runner.rows and engine.kv.free_pages == num_pages and not engine.speculator.has_work


@pytest.mark.parametrize("skill", [0.0, 1.0])
def test_an_eos_among_the_drafts_counts_as_the_models(skill: float) -> None:
    starts = ([i, j] for i in range(300) for j in range(100))
    prompt = next(start for start in starts if next_token([*start, next_token(start)]) == EOS)
    engine = new_engine(FakeRunner(), guessing(skill))
    engine.add(ask("a", prompt, 20))
    outputs = drain(engine)
    assert text(outputs) == expected(prompt, 20) and outputs[-1].stop_token_id == EOS
