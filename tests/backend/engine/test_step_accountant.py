"""Times per token, counts per step and the history of a traced request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.engine.step_accountant import StepAccountant
from backend.kv.manager import KVManager
from backend.types import Plan, Request, SamplingParams, ScheduledChunk, Sequence, StepOutput

TRACEPARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def make_accountant(times: Iterator[float]) -> StepAccountant:
    def clock() -> float:
        return next(times)

    kv = KVManager(8, revision="r", kv_dtype="float32", prefix_cache=True)
    return StepAccountant(kv, clock, lambda: 0.0)


def make_sequence(num_prompt_tokens: int, num_output_tokens: int = 0, traceparent: str = "") -> Sequence:
    prompt = [1] * num_prompt_tokens
    request = Request(
        request_id="a",
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=9),
        traceparent=traceparent,
    )
    return Sequence(request, prompt + [2] * num_output_tokens, num_prompt_tokens, arrival_s=1.0)


def test_first_token_counts_from_arrival_and_tokens_of_a_draft_share_the_time() -> None:
    accountant = make_accountant(iter([2.0, 4.0, 5.0, 7.0]))
    sequence = make_sequence(6)
    prompt = ScheduledChunk(sequence, 0, 6)
    accountant.begin_step()
    accountant.end_compute(Plan([prompt]))
    accountant.count_outputs([prompt], [StepOutput(request_id="a", token_ids=[3])])
    first = accountant.report(Plan([prompt]), Plan([prompt]), None)
    assert first.ttfts_s == [3.0] and not len(first.inter_token_s) and first.duration_s == 2.0
    assert (first.num_prompt_tokens, first.num_generated_tokens, first.num_tokens) == (6, 1, 6)

    sequence.tokens.append(3)
    decode = ScheduledChunk(sequence, 6, 4, draft=(4, 5, 6))
    plan = Plan([decode], [make_sequence(1)], num_drafts=3)
    accountant.begin_step()
    accountant.end_compute(plan)
    accountant.count_outputs([decode], [StepOutput(request_id="a", token_ids=[4, 5, 7], num_accepted=2)])
    second = accountant.report(plan, plan, None)
    assert not second.ttfts_s and second.inter_token_s.tolist() == pytest.approx([1.0] * 3)
    assert second.drafts == [(3, 2)] and second.num_generated_tokens == 3
    assert second.num_prompt_tokens == 0 and second.num_preempted == 1


def test_trace_tells_prefill_chunks_from_decode_steps() -> None:
    accountant = make_accountant(iter([0.0, 2.0, 3.0, 4.0, 5.0]))
    traced, other = make_sequence(5, traceparent=TRACEPARENT), make_sequence(5)
    accountant.add_request(traced)
    accountant.add_request(other)
    accountant.begin_step()
    accountant.end_compute(Plan([ScheduledChunk(traced, 0, 5), ScheduledChunk(other, 0, 5)]))
    traced.tokens.append(2)
    decode = ScheduledChunk(traced, 5, 3, draft=(2, 2))
    accountant.begin_step()
    accountant.end_compute(Plan([decode]))
    accountant.count_outputs([decode], [StepOutput(request_id="a", num_accepted=1)], lambda _: "ngram")
    accountant.end_request(traced, "stop")
    accountant.end_request(other, "stop")
    (trace,) = accountant.take_traces()
    assert trace.chunks == [(2.0, 0, 5)] and trace.finished_s == 5.0 and trace.finish_reason == "stop"
    assert (trace.num_decode_steps, trace.num_drafts, trace.num_drafted_tokens) == (1, 1, 2)
    assert trace.num_accepted_tokens == 1 and trace.drafters == {"ngram": [1, 2, 1]}
    assert accountant.take_traces() == []
