"""An engine that runs ahead of its device says what one says that waits for each step."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.engine import Engine
from backend.engine.runner_protocol import StepResult
from backend.errors import DeviceLost
from backend.types import DraftOptions, Plan, Request, SamplingParams, Sequence
from tests.backend.engine.fake_runner import EOS, FakeRunner, LaunchedFake, expected
from tests.backend.engine.test_engine import (
    ask,
    check_that_only_the_bad_one_fails,
    drain,
    new_engine,
    text,
)


class Noting(FakeRunner):
    """Notes, for each launch, whether a step was in flight."""

    def __init__(self, **changes: object) -> None:
        super().__init__(is_ahead=True, **changes)  # type: ignore[arg-type]
        self.was_ahead: list[bool] = []

    def launch(self, plan: Plan) -> LaunchedFake:
        self.was_ahead.append(bool(self.flying))
        return super().launch(plan)


def test_each_step_is_launched_before_the_last_is_read() -> None:
    runner = Noting()
    engine = new_engine(runner)
    for name in ("a", "b"):
        engine.add(ask(name, [5, 6, 7], 12))
    assert engine.step() == [], "the first step is in flight"
    outputs = drain(engine)
    for name in ("a", "b"):
        assert text(outputs[name]) == expected([5, 6, 7], 12)
        assert [output.finish_reason for output in outputs[name]] == [None] * 11 + ["length"]
    assert runner.was_ahead == [False] + [True] * 11, "no step is launched for a token beyond max_tokens"
    assert not runner.flying


def test_a_token_drawn_after_the_end_is_dropped() -> None:
    runner, prompt = Noting(), [9, 9]
    tokens = expected(prompt, 6)
    engine = new_engine(runner)
    engine.add(ask("a", prompt, 6, stop_token_ids=(tokens[3],)))
    engine.add(ask("b", [1, 2], 12))
    outputs = drain(engine)
    assert text(outputs["a"]) == tokens[:3] and outputs["a"][-1].stop_token_id == tokens[3]
    assert text(outputs["b"]) == expected([1, 2], 12)
    launched = sum(chunk.sequence.request.request_id == "a" for plan in runner.plans for chunk in plan.chunks)
    assert launched == 5, "the step behind the last one was under way"


def test_the_next_owner_of_a_row_and_its_pages_is_not_disturbed() -> None:
    engine = new_engine(Noting(num_pages=2, max_model_tokens=32), max_running=1)
    tokens = expected([9] * 5, 6)
    engine.add(ask("a", [9] * 5, 6, stop_token_ids=(tokens[2],)))
    engine.add(ask("b", [4] * 20, 10))
    outputs = drain(engine)
    assert text(outputs["a"]) == tokens[:2] and text(outputs["b"]) == expected([4] * 20, 10)


def test_pages_are_published_when_their_step_was_read() -> None:
    engine = new_engine(Noting())
    engine.add(ask("a", [7] * 40, 2))
    engine.step()
    assert not engine.kv.cached_digests(), "its keys and values may turn out not to be finite"
    engine.step()
    assert len(engine.kv.cached_digests()) == 2


def test_who_waits_for_a_page_in_flight_does_not_compute_it_as_well() -> None:
    runner = Noting()
    engine = new_engine(runner, max_batch_tokens=32)
    engine.add(ask("a", [7] * 40, 2))
    engine.step()
    engine.add(ask("b", [7] * 40, 2))
    outputs = drain(engine)
    assert outputs["b"][0].num_cached_tokens == 32
    assert text(outputs["a"]) == text(outputs["b"]) == expected([7] * 40, 2)


def test_drafts_wait_for_the_tokens_before_them() -> None:
    runner, prompt = Noting(), [3, 4, 5]
    answer = expected(prompt, 24)
    engine = new_engine(runner)
    asked = ask("a", prompt, 24)
    engine.add(msgspec.structs.replace(asked, prediction_token_ids=answer))
    assert text(drain(engine)["a"]) == answer
    drafted = [bool(plan.num_drafts) for plan in runner.plans]
    assert any(drafted)
    assert not any(d and ahead for d, ahead in zip(drafted, runner.was_ahead, strict=True))


class Failing(Noting):
    """Fails once, where it is told to, in a step of several requests."""

    place = ""
    at_step = 0
    error: Exception = RuntimeError("a step fails")

    def will_fail(self, place: str, plan: Plan) -> bool:
        return self.place == place and len(self.plans) >= self.at_step and len(plan.chunks) > 1

    def _fail(self, place: str, plan: Plan) -> None:
        if self.will_fail(place, plan):
            self.place = ""
            raise self.error

    def launch(self, plan: Plan) -> LaunchedFake:
        self._fail("launch", plan)
        step = super().launch(plan)
        return FailingStep(**{name: getattr(step, name) for name in step.__slots__})


class FailingStep(LaunchedFake):
    """A step of it."""

    def draw(self) -> None:
        assert isinstance(self.runner, Failing)
        self.runner._fail("draw", self.plan)
        LaunchedFake.draw(self)
        if self.runner.will_fail("read", self.plan):  # then what it draws is not what it should
            self.runner.last_draws |= dict.fromkeys(self.rows, 0)

    def read(self) -> StepResult:
        result = LaunchedFake.read(self)
        assert isinstance(self.runner, Failing)
        self.runner._fail("read", self.plan)
        return result


@pytest.mark.parametrize("place", ["launch", "draw", "read"])
@pytest.mark.parametrize("at_step", [1, 2, 6])
def test_what_a_step_has_failed_is_computed_again(place: str, at_step: int) -> None:
    runner = Failing()
    runner.place, runner.at_step = place, at_step
    engine = new_engine(runner, max_batch_tokens=32)
    prompts = {"a": [1, 2, 3], "b": [4] * 50, "c": [5, 6]}
    for name, prompt in prompts.items():
        engine.add(ask(name, prompt, 12))
    outputs = drain(engine)
    assert runner.place == "", "it has failed"
    for name, prompt in prompts.items():
        assert text(outputs[name]) == expected(prompt, 12)


@pytest.mark.parametrize("place", ["launch", "draw", "read"])
def test_nothing_is_tried_again_on_a_device_that_is_lost(place: str) -> None:
    runner = Failing()
    runner.place, runner.error = place, DeviceLost("gone")
    engine = new_engine(runner)
    for name in ("a", "b"):
        engine.add(ask(name, [1, 2, 3], 12))
    with pytest.raises(DeviceLost, match="gone"):
        drain(engine)
    assert all(len(plan.chunks) > 1 for plan in runner.plans)


def test_unsound_logits_end_only_their_request() -> None:
    class Unsound(Noting):
        def launch(self, plan: Plan) -> LaunchedFake:
            step = super().launch(plan)
            return UnsoundStep(**{name: getattr(step, name) for name in step.__slots__})

    class UnsoundStep(LaunchedFake):
        def read(self) -> StepResult:
            result = LaunchedFake.read(self)
            result.is_sound = [c.sequence.request.request_id != "bad" for c in self.plan.chunks]
            return result

    check_that_only_the_bad_one_fails(Unsound())


def test_a_step_that_fails_is_not_blamed_on_who_is_left() -> None:
    runner = Failing()
    runner.place, runner.at_step = "read", 3
    engine = new_engine(runner)
    for name in ("a", "b"):
        engine.add(ask(name, [1, 2, 3], 12))
    for _ in range(3):
        engine.step()
    engine.abort("a")
    assert text(drain(engine)["b"])[-1:] == expected([1, 2, 3], 12)[-1:]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_gateway_that_is_gone_takes_its_requests_out_of_the_plan(is_ahead: bool) -> None:
    """The engine tells gateways which requests begin; one that does not read that any more is dropped."""
    engine = new_engine(FakeRunner(is_ahead=is_ahead))
    begun: list[str] = []

    def tell(sequences: list[Sequence]) -> None:
        begun.extend(sequence.request.request_id for sequence in sequences)
        if "gone" in begun:
            engine.abort("gone")

    engine.on_begin = tell
    engine.add(ask("a", [1, 2, 3], 12))
    engine.step()
    for name in ("gone", "b"):
        engine.add(ask(name, [4, 5], 12))
    outputs = drain(engine)
    for name, prompt in (("a", [1, 2, 3]), ("b", [4, 5])):
        assert text(outputs[name]) == expected(prompt, 12)[-len(text(outputs[name])) :]
        assert outputs[name][-1].finish_reason == "length"
    assert begun == ["a", "gone", "b"], "each is told once"


def test_the_time_of_a_step_is_shared_with_those_that_ended_in_flight() -> None:
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += 1.0
        return now_s[0]

    engine = Engine(EngineConfig(model="fake", checkpoint="/none", max_running=8), Noting(), clock)
    engine.add(ask("long", [7] * 60, 4))
    engine.add(ask("short", [8], 4))
    engine.step()
    sequences = {name: engine._active[name].sequence for name in ("long", "short")}
    engine.abort("long")
    drain(engine)
    assert sequences["long"].machine_s > 5 and sequences["short"].machine_s > 0
    assert engine.machine.work_s == pytest.approx(sum(s.machine_s for s in sequences.values()))


def test_an_engine_whose_last_step_in_flight_is_void_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    engine = Engine(EngineConfig(model="fake", checkpoint="/none", max_running=1), Noting(), lambda: now_s[0])
    engine.add(ask("a", [7], 4))
    engine.add(ask("waits", [8], 4))
    engine.step()
    waiting = engine._active["waits"].sequence
    engine.abort("a")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_settle_waiting", lambda: [engine._reject(waiting, "refused", "")])
        assert [output.error for output in engine.step()] == ["refused"]
    assert not engine.has_work
    now_s[0] += 3600.0
    engine.add(ask("b", [9], 2))
    assert drain(engine)["b"][-1].machine_s < 1.0
    assert engine.machine.idle_s == 3600.0


def test_requests_that_only_wait_do_not_keep_steps_from_being_launched_ahead() -> None:
    runner = Noting()
    config = EngineConfig(
        model="fake", checkpoint="/none", max_running=1, speculative=SpeculativeConfig(drafter="ngram")
    )
    engine = Engine(config, runner)
    for name in ("runs", "waits"):
        request, drafter = ask(name, [3, 4], 60, ignore_eos=True), "none" if name == "runs" else "ngram"
        engine.add(msgspec.structs.replace(request, draft=DraftOptions(drafter=drafter)))
    for _ in range(50):
        engine.step()
    assert sum(runner.was_ahead) == 49


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it comes, and the one before which it is cancelled."""

    request: Request
    at_step: int
    cancelled_at: int | None


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    prompts = st.lists(st.integers(EOS + 1, 9), min_size=1, max_size=40)
    known = draw(st.lists(prompts, min_size=1, max_size=3))  # so that some share their beginnings
    found = []
    for number in range(draw(st.integers(1, 8))):
        prompt = draw(st.sampled_from(known)) + draw(st.lists(st.integers(3, 9), max_size=3))
        answer = expected(prompt, 24)
        stops = draw(st.sets(st.sampled_from(answer or [5]), max_size=1))
        params = SamplingParams(
            max_tokens=draw(st.integers(1, 24)), stop_token_ids=tuple(stops), ignore_eos=draw(st.booleans())
        )
        guess = draw(st.sampled_from([[], answer, [*answer[:2], 11, *answer[3:]]]))
        request = Request(
            request_id=str(number),
            prompt_token_ids=prompt,
            params=params,
            tenant_salt=draw(st.sampled_from(["", "x"])),
            priority=draw(st.sampled_from([0, 0, 1])),
            prediction_token_ids=guess if draw(st.booleans()) else [],
        )
        at_step = draw(st.integers(0, 12))
        cancelled = draw(st.one_of(st.none(), st.integers(at_step, 30)))
        found.append(Arrival(request, at_step, cancelled))
    return found


def answers(engine: Engine, asked: list[Arrival]) -> dict[str, tuple[list[int], str | None]]:
    """What it says to each, and why it ended."""
    said: dict[str, list[int]] = {each.request.request_id: [] for each in asked}
    ended: dict[str, str | None] = dict.fromkeys(said)
    step = 0
    while engine.has_work or any(each.at_step >= step for each in asked):
        for each in asked:
            if each.at_step == step:
                engine.add(each.request)
            if each.cancelled_at == step:
                engine.abort(each.request.request_id)
        for output in engine.step() if engine.has_work else []:
            said[output.request_id] += output.token_ids
            ended[output.request_id] = output.finish_reason or ended[output.request_id]
        engine.scheduler.check_invariants()
        step += 1
    return {name: (tokens, ended[name]) for name, tokens in said.items()}


@settings(max_examples=150, deadline=None)
@given(arrivals(), st.integers(5, 12), st.sampled_from([16, 64]), st.booleans())
def test_whatever_comes_and_goes(
    asked: list[Arrival], num_pages: int, max_batch_tokens: int, prefix_cache: bool
) -> None:
    """Requests come and are cancelled at any step, share prompts, are preempted, stop early, have drafts."""
    found = {}
    for is_ahead in (False, True):
        runner = FakeRunner(num_pages=num_pages, max_model_tokens=80, is_ahead=is_ahead)
        engine = new_engine(
            runner, max_running=4, max_batch_tokens=max_batch_tokens, prefix_cache=prefix_cache
        )
        found[is_ahead] = answers(engine, asked)
        assert engine.kv.free_pages == num_pages and not runner.rows
    for each in asked:
        (plain, why), (ahead, also) = (found[is_ahead][each.request.request_id] for is_ahead in (False, True))
        if each.cancelled_at is None:
            assert (ahead, also) == (plain, why)
        shorter, longer = sorted((plain, ahead), key=len)
        assert longer[: len(shorter)] == shorter
