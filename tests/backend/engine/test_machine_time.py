"""Machine seconds add up to the wall time, whatever happens to the sequences, and follow what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.engine.engine import Engine
from backend.engine.machine_time import CONTEXT_OF_DOUBLE_COST, MachineTime
from backend.engine.runner_protocol import StepResult
from backend.types import GrammarSpec, Plan, Request, SamplingParams, ScheduledChunk, Sequence, StepOutput
from tests.backend.engine.pairs.stage import PICO_SMALL, Record, Stage, play

PROMPT = "Sort these numbers in ascending order: 41, 7, 93, 18, 66, 25, 80, 3."
JSON = GrammarSpec(
    kind="json_schema", text='{"type": "object", "properties": {"a": {"type": "string", "minLength": 20}}}'
)
COUNT = st.integers(1, 10_000)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage(PICO_SMALL)
    yield stage
    stage.close()


def ask(stage: Stage, name: str, text: str = PROMPT, max_tokens: int = 64, **changes: object) -> Request:
    request = Request(
        request_id=name,
        prompt_token_ids=stage.tokenizer.encode_chat([{"role": "user", "content": text}]),
        params=SamplingParams(max_tokens=max_tokens, temperature=0.8, seed=3, ignore_eos=True),
    )
    return msgspec.structs.replace(request, **changes)


def told(record: Record, name: str) -> float:
    """What the last output for a request says."""
    return record.outputs[name][-1].machine_s if record.outputs[name] else 0.0


def chunk(start: int, num_tokens: int) -> ScheduledChunk:
    request = Request(request_id="a", prompt_token_ids=[1], params=SamplingParams(max_tokens=9))
    return ScheduledChunk(Sequence(request, [1] * (start + num_tokens), 1), start, num_tokens)


def wrong_after(tokens: list[int], num_right: int) -> list[int]:
    """A prediction whose drafts are rejected after the first ones."""
    return [*tokens[:num_right], *(300 + i for i in range(20))]


def mixed(stage: Stage) -> list[Request]:
    """Choices of one prompt, adapters, a grammar, a good and a bad prediction, a long prompt."""
    guess = stage.plain(ask(stage, "p")).tokens("plain")
    return [
        ask(stage, "cancelled", PROMPT * 2),
        *(ask(stage, f"n/{i}") for i in range(2)),
        ask(stage, "adapter", adapter=stage.adapters[0]),
        ask(stage, "grammar", "Give me JSON.", grammar=JSON),
        ask(stage, "good", prediction_token_ids=guess),
        ask(stage, "bad", prediction_token_ids=wrong_after(guess, 4)),
        ask(stage, "long", PROMPT * 8),
    ]


def test_what_is_shared_and_idle_is_the_wall_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with too few pages, a small budget of prompt tokens and everything that can happen."""
    record, requests = Record(), mixed(stage)
    engine = stage.engine(record, num_pages=24, max_batch_tokens=48, max_running=8, prefix_cache=False)
    step, moments_s = engine.step, list[float]()

    def timed() -> list[StepOutput]:
        moments_s.append(time.perf_counter())
        outputs = step()
        moments_s.append(time.perf_counter())
        return outputs

    monkeypatch.setattr(engine, "step", timed)
    started_s, worked_s = time.perf_counter(), 0.0
    engine.machine = MachineTime(time.perf_counter)
    for _ in range(3):
        moments_s.clear()
        play(
            engine,
            record,
            requests,
            lambda record, name: (
                name == "cancelled" and is_running(engine, name) and bool(told(record, name))
            ),
        )
        worked_s += moments_s[-1] - moments_s[0]
        pause_s = time.perf_counter()
        while time.perf_counter() < pause_s + 0.1:  # nothing to do
            pass
    wall_s = time.perf_counter() - started_s
    assert max(sequence.num_preemptions for sequence in record.sequences.values()), "no page was missing"
    assert record.sequences["cancelled"].finish_reason == "abort"
    assert engine.machine.work_s + engine.machine.idle_s == pytest.approx(wall_s, rel=0.02)
    assert engine.machine.work_s == pytest.approx(worked_s, rel=0.05)


def is_running(engine: Engine, name: str) -> bool:
    return name in engine._active


def test_sequences_are_told_all_that_was_worked(stage: Stage) -> None:
    record, requests = Record(), mixed(stage)
    engine = stage.engine(record, num_pages=24, max_batch_tokens=48, max_running=8, prefix_cache=False)
    engine.machine = MachineTime(time.perf_counter)
    play(engine, record, requests, lambda record, name: name == "cancelled" and is_running(engine, name))
    taken = {name: sequence.machine_s for name, sequence in record.sequences.items()}
    assert sum(taken.values()) == pytest.approx(engine.machine.work_s)
    finished = [name for name in taken if name != "cancelled"]
    assert [told(record, name) for name in finished] == [taken[name] for name in finished]
    assert all(taken[name] > 0 for name in finished)
    for outputs in record.outputs.values():
        seconds = [output.machine_s for output in outputs]
        assert seconds == sorted(seconds)  # so far


def test_a_long_prompt_is_told_while_it_is_computed(stage: Stage) -> None:
    """So that a client that leaves before the first token pays."""
    record, request = Record(), ask(stage, "long", PROMPT * 8)
    engine = stage.engine(record, max_batch_tokens=48)
    engine.machine = MachineTime(time.perf_counter)
    engine.add(request)
    first, second = engine.step(), engine.step()
    assert not first[0].token_ids and first[0].finish_reason is None
    assert 0 < first[0].machine_s < second[0].machine_s
    assert engine.abort("long")
    idle_s = engine.machine.idle_s
    assert idle_s < engine.machine.idle_s  # nothing is left to do


def share(record: Record, sequence: Sequence) -> float:
    """Its seconds, of steps of a second each."""
    return sum(
        cost(c) / sum(map(cost, step)) for step in record.steps for c in step if c.sequence is sequence
    )


def test_a_preempted_sequence_pays_what_is_computed_again(stage: Stage) -> None:
    record = Record()
    engine = stage.engine(record, num_pages=14, prefix_cache=False)
    engine.machine = MachineTime(Ticking())  # a second for each step
    play(engine, record, [ask(stage, name, max_tokens=40) for name in ("a", "b", "c")])
    victim = next(s for s in record.sequences.values() if s.num_preemptions)
    chunks = record.chunks(victim.request.request_id)
    assert sum(c.num_tokens for c in chunks) > len(victim.tokens)
    assert victim.machine_s == pytest.approx(share(record, victim))
    assert engine.machine.work_s == len(record.steps)


def test_a_prefix_hit_costs_less_than_computing(stage: Stage) -> None:
    record = Record()
    engine = stage.engine(record)
    engine.machine = MachineTime(time.perf_counter)
    for name in ("cold", "warm"):
        play(engine, record, [ask(stage, name, PROMPT * 8, max_tokens=8)])
    assert record.sequences["warm"].num_cached_tokens > 64
    costs = {name: sum(map(cost, record.chunks(name))) for name in ("cold", "warm")}
    assert costs["warm"] < costs["cold"] / 3
    assert told(record, "warm") < told(record, "cold")


def test_who_drafts_pays_for_rejected_drafts(stage: Stage) -> None:
    record = Record()
    engine = stage.engine(record, prefix_cache=False)
    engine.machine = MachineTime(Ticking())  # a second for each step
    wrong = wrong_after(stage.plain(ask(stage, "draft")).tokens("plain"), 4)
    play(engine, record, [ask(stage, "plain"), ask(stage, "draft", prediction_token_ids=wrong)])
    both = [[c for c in step if c.draft] for step in record.steps if len(step) == 2]
    num_drafted = [len(chunks[0].draft) for chunks in both if chunks]
    num_accepted = sum(output.num_accepted for output in record.outputs["draft"])
    assert num_accepted < sum(num_drafted) / 2
    for name, sequence in record.sequences.items():
        assert told(record, name) == pytest.approx(share(record, sequence))
    drafting = next(c for chunks in both for c in chunks)
    assert cost(drafting) > len(drafting.draft)  # each draft at the price of a token


class Ticking:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def test_a_failed_sequence_pays_its_part_of_the_step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record()
    engine = stage.engine(record)
    engine.machine = MachineTime(time.perf_counter)
    run: Callable[[Plan], StepResult] = engine._runner.run

    def breaking(plan: Plan) -> StepResult:
        if any(c.sequence.request.request_id == "broken" for c in plan.chunks):
            raise RuntimeError("broken")
        return run(plan)

    monkeypatch.setattr(engine._runner, "run", breaking)
    play(engine, record, [ask(stage, "broken"), ask(stage, "good")])
    assert record.outputs["broken"][-1].finish_reason == "error"
    assert told(record, "broken") > 0
    assert sum(s.machine_s for s in record.sequences.values()) == pytest.approx(engine.machine.work_s)


def test_time_without_work_is_idle() -> None:
    times = iter([0.0, 10.0, 11.0, 13.0, 20.0, 20.0, 24.0, 30.0])
    machine = MachineTime(lambda: next(times))
    machine.begin_step()  # at 10
    work = chunk(0, 4)
    machine.share([work])  # at 11
    machine.begin_step()  # the step follows at once: what lies between belongs to it
    machine.share([work])  # at 13
    machine.rest()  # nothing is left
    machine.begin_step()  # at 20
    machine.rest()  # all of its sequences wait for a grammar
    assert machine.idle_s == 17.0  # at 20
    machine.begin_step()  # at 24
    machine.share([work])  # at 30
    assert (machine.work_s, machine._idle_s, work.sequence.machine_s) == (9.0, 21.0, 9.0)


@given(st.lists(st.tuples(st.integers(0, 100_000), COUNT), min_size=1, max_size=40), st.floats(0, 1e4))
def test_shares_are_the_step(chunks: list[tuple[int, int]], seconds: float) -> None:
    times = iter([0.0, 0.0, seconds])
    machine = MachineTime(lambda: next(times))
    machine.begin_step()
    made = [chunk(start, num_tokens) for start, num_tokens in chunks]
    machine.share(made)
    assert sum(each.sequence.machine_s for each in made) == pytest.approx(seconds)
    assert all(each.sequence.machine_s >= 0 for each in made)


@given(COUNT, COUNT, st.integers(0, 100_000))
def test_parts_of_a_chunk_cost_what_it_costs(first: int, second: int, start: int) -> None:
    """However a prompt is cut into chunks."""
    parts = cost(chunk(start, first)) + cost(chunk(start + first, second))
    assert cost(chunk(start, first + second)) == pytest.approx(parts)


def test_context_weighs() -> None:
    assert cost(chunk(CONTEXT_OF_DOUBLE_COST, 1)) == pytest.approx(2 * cost(chunk(0, 1)), rel=1e-3)


def cost(one: ScheduledChunk) -> float:
    """Against a chunk of cost 1, whose share is 1."""
    times = iter([0.0, 0.0, 1.0])
    machine, unit = MachineTime(lambda: next(times)), chunk(0, 1)
    machine.begin_step()
    machine.share([measured := ScheduledChunk(chunk(0, 1).sequence, one.start, one.num_tokens), unit])
    return measured.sequence.machine_s / unit.sequence.machine_s
