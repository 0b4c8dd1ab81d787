from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.engine.runner_protocol import StepResult
from backend.errors import PromptTooLong, QueueFull, RequestError
from backend.types import Plan, Request, SamplingParams, StepOutput
from tests.backend.engine.fake_runner import EOS, FakeRunner, expected, next_token


def new_engine(runner: FakeRunner, **changes: object) -> Engine:
    config = {
        "model": "fake",
        "checkpoint": "/none",
        "max_running": 8,
        "max_batch_tokens": 64,
        "max_queue": 64,
    }
    return Engine(EngineConfig(**(config | changes)), runner)  # type: ignore[arg-type]


def ask(request_id: str, prompt: list[int], max_tokens: int = 8, **params: object) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    return Request(request_id=request_id, prompt_token_ids=prompt, params=sampling)


def drain(engine: Engine) -> dict[str, list[StepOutput]]:
    outputs: dict[str, list[StepOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    engine.scheduler.check_invariants()
    return outputs


def text(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_generates_until_max_tokens() -> None:
    engine = new_engine(FakeRunner())
    engine.add(ask("a", [5, 6, 7], 5))
    outputs = drain(engine)["a"]
    assert text(outputs) == expected([5, 6, 7], 5)
    assert [o.finish_reason for o in outputs] == [None] * 4 + ["length"]


def test_stop_token_ends_and_is_not_part_of_the_text() -> None:
    runner = FakeRunner()
    tokens = expected([9, 9], 6)
    engine = new_engine(runner)
    engine.add(ask("a", [9, 9], 6, stop_token_ids=(tokens[3],)))
    last = drain(engine)["a"]
    assert text(last) == tokens[: tokens.index(tokens[3])]
    assert last[-1].finish_reason == "stop" and last[-1].stop_token_id == tokens[3]


def prompt_with_eos() -> list[int]:
    """A prompt after which the fake model ends at once."""
    return next([i, j] for i in range(100) for j in range(100) if next_token([i, j]) == EOS)


def test_eos_ends_unless_ignored() -> None:
    prompt = prompt_with_eos()
    engine = new_engine(FakeRunner())
    engine.add(ask("a", prompt))
    engine.add(ask("b", prompt, 3, ignore_eos=True))
    outputs = drain(engine)
    assert outputs["a"][0].finish_reason == "stop" and outputs["a"][0].stop_token_id == EOS
    assert text(outputs["b"])[0] == EOS and len(text(outputs["b"])) == 3


def test_abort_frees_pages_and_row_at_once() -> None:
    runner = FakeRunner()
    engine = new_engine(runner, prefix_cache=False)
    engine.add(ask("a", list(range(40)), 50))
    engine.step()
    assert engine.kv.free_pages < 64
    assert engine.abort("a") and not engine.abort("a")
    assert engine.kv.free_pages == 64 and not runner.rows and not engine.has_work
    engine.scheduler.check_invariants()


def test_refusals_name_the_field() -> None:
    engine = new_engine(FakeRunner(), max_queue=1)
    with pytest.raises(PromptTooLong):
        engine.add(ask("a", [1] * 510, 10))
    with pytest.raises(RequestError, match="1000") as caught:
        engine.add(ask("a", [1, 1000]))
    assert caught.value.param == "prompt"
    for field, value in {
        "temperature": float("nan"),
        "top_p": 1.5,
        "logit_bias": {5000: 1.0},
        "stop_token_ids": (-1,),
        "repetition_penalty": 0.0,
        "top_k": 2**63,
        "prompt_logprobs": 101,
    }.items():
        with pytest.raises(RequestError) as caught:
            engine.add(ask("a", [1], **{field: value}))
        assert caught.value.param == field
    engine.add(ask("a", [1]))
    with pytest.raises(QueueFull):
        engine.add(ask("b", [1]))
    drain(engine)


def test_failing_request_does_not_harm_the_others() -> None:
    engine = new_engine(FakeRunner(poison=666))
    engine.add(ask("good", [1, 2, 3], 6))
    engine.add(ask("bad", [1, 2, 666] * 10, 6))
    engine.add(ask("late", [4, 5], 6))
    outputs = drain(engine)
    assert text(outputs["good"]) == expected([1, 2, 3], 6) and text(outputs["late"]) == expected([4, 5], 6)
    assert [o.finish_reason for o in outputs["bad"]] == ["error"] and outputs["bad"][0].error
    # What it computed must not be found by the next one with the same prompt.
    assert engine.kv.cached_pages == 0


def test_a_step_in_which_everything_fails_raises() -> None:
    engine = new_engine(FakeRunner(poison=666))
    engine.add(ask("a", [666]))
    engine.add(ask("b", [666, 1]))
    with pytest.raises(RuntimeError, match="poisoned"):
        drain(engine)


def test_unsound_logits_end_only_their_request() -> None:
    class Unsound(FakeRunner):
        def run(self, plan: Plan) -> StepResult:
            result = super().run(plan)
            result.is_sound = [c.sequence.request.request_id != "bad" for c in plan.chunks]
            return result

    check_that_only_the_bad_one_fails(Unsound())


def check_that_only_the_bad_one_fails(runner: FakeRunner) -> None:
    engine = new_engine(runner, max_batch_tokens=32)
    engine.add(ask("bad", [1, 2, 3] * 20))  # fails in its first chunk, which draws no token
    engine.add(ask("good", [1, 2, 3]))
    outputs = drain(engine)
    assert [output.finish_reason for output in outputs["bad"]] == ["error"]
    assert engine.kv.cached_pages == 0, "what it computed is not for others"
    assert text(outputs["good"]) == expected([1, 2, 3], 8)


def test_prompt_logprobs_are_bounded_by_what_a_frame_may_hold() -> None:
    engine = new_engine(FakeRunner(num_pages=2000, max_model_tokens=30_000))
    with pytest.raises(RequestError, match="prompt_logprobs") as caught:
        engine.add(ask("a", [1] * 20_000, prompt_logprobs=100))
    assert caught.value.param == "prompt_logprobs"
    engine.add(ask("a", [1] * 20_000, prompt_logprobs=5))


def test_report_counts_tokens_and_times() -> None:
    engine = new_engine(FakeRunner())
    engine.add(ask("a", list(range(20)), 3))
    engine.step()
    first = engine.last_report
    assert first is not None and first.num_prompt_tokens == 20 and len(first.ttfts_s) == 1
    engine.step()
    second = engine.last_report
    assert second is not None and second.num_prompt_tokens == 0 and len(second.inter_token_s) == 1
    drain(engine)
    engine.add(ask("b", list(range(20)), 3))
    engine.step()
    third = engine.last_report
    assert third is not None and third.num_prefix_hit_tokens == 16 and third.num_prompt_tokens == 4


def test_trace_tells_chunks_steps_and_end() -> None:
    engine = new_engine(FakeRunner(), max_batch_tokens=16)
    request = Request(
        request_id="a",
        prompt_token_ids=list(range(40)),
        params=SamplingParams(max_tokens=4, ignore_eos=True),
        traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
    )
    engine.add(request)
    drain(engine)
    (trace,) = engine.take_traces()
    assert [(start, tokens) for _, start, tokens in trace.chunks] == [(0, 16), (16, 16), (32, 8)]
    assert trace.num_decode_steps == 3 and trace.num_output_tokens == 4 and trace.finish_reason == "length"
    assert trace.arrival_s <= trace.scheduled_s <= trace.first_token_s <= trace.finished_s
    assert engine.take_traces() == []


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32), num_pages=st.sampled_from([10, 16, 64]), budget=st.sampled_from([16, 40, 128])
)
def test_any_mix_of_add_abort_and_preemption_gives_the_same_text(
    seed: int, num_pages: int, budget: int
) -> None:
    rng = random.Random(seed)
    runner = FakeRunner(num_pages=num_pages, max_model_tokens=120)
    engine = new_engine(runner, max_batch_tokens=budget, max_running=8)
    shared = [rng.randrange(10, 1000) for _ in range(64)]
    wanted: dict[str, list[int]] = {}
    got: dict[str, list[int]] = {}
    for number in range(60):
        if rng.random() < 0.4:
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
    while engine.has_work:
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.token_ids)
    engine.scheduler.check_invariants()
    assert {key: got.get(key, []) for key in wanted} == wanted
    assert not runner.rows and engine.kv.free_pages == num_pages


def test_a_resumed_output_goes_on_at_its_place() -> None:
    prompt, whole = list(range(20, 45)), expected(list(range(20, 45)), 30)
    assert len(whole) == 30
    for cut in range(1, 30):
        engine = new_engine(FakeRunner())
        engine.add(resume(ask("a", prompt, 30), whole[:cut]))
        outputs = drain(engine)["a"]
        assert text(outputs) == whole[cut:] and outputs[-1].finish_reason == "length"
        assert all(output.num_cached_tokens == 0 for output in outputs)


def test_a_resumed_sequence_is_served_first_and_never_refused() -> None:
    engine = new_engine(FakeRunner(), max_running=1, max_queue=2)
    engine.add(ask("a", [1, 2, 3], 3, ignore_eos=True))
    engine.step()
    for name in "bc":
        engine.add(ask(name, [1, 2, 3], 2, ignore_eos=True))
    with pytest.raises(QueueFull):
        engine.add(ask("late", [1, 2, 3]))
    engine.add(resume(ask("resumed", [4, 5], 4, ignore_eos=True), [6]))
    ends: list[str] = []
    while engine.has_work:
        ends += [output.request_id for output in engine.step() if output.finish_reason]
    assert ends == ["a", "resumed", "b", "c"]


def test_a_resumed_output_was_not_complete_and_is_of_this_vocabulary() -> None:
    engine = new_engine(FakeRunner())
    for wrong, message in (([5] * 8, "8 tokens of at most 8"), ([5, 1000], "1000"), ([-1], "-1")):
        with pytest.raises(RequestError, match=message) as caught:
            engine.add(resume(ask("a", [1]), wrong))
        assert caught.value.param == "resume_token_ids"
    assert not engine.has_work


def resume(request: Request, token_ids: list[int]) -> Request:
    return msgspec.structs.replace(request, resume_token_ids=token_ids)
