"""Where an output ends: stop tokens among drafts and draws, grammars, max_tokens."""

from __future__ import annotations

import pytest

from backend.engine.outputs import ActiveRequest, build_output, cut_accepted
from backend.engine.runner_protocol import StepResult
from backend.types import (
    Request,
    SamplingParams,
    ScheduledChunk,
    Sequence,
    StepOutput,
    TokenLogprobs,
)

STOP = 9


def make_active(max_tokens: int = 8) -> ActiveRequest:
    request = Request(request_id="a", prompt_token_ids=[1, 2], params=SamplingParams(max_tokens=max_tokens))
    return ActiveRequest(Sequence(request, [1, 2, 3], 2), frozenset({STOP}))


def take(active: ActiveRequest, result: StepResult, draft: tuple[int, ...] = ()) -> StepOutput:
    """One step as the engine does it, for the one chunk of a step."""
    chunk = ScheduledChunk(active.sequence, 2, 1 + len(draft), draft)
    if draft:
        active.sequence.tokens += cut_accepted(active, result, 0)
    return build_output(active, chunk, result, 0, lambda sequence, token_id: sequence.tokens.append(token_id))


def logprobs(*token_ids: int) -> dict[int, list[TokenLogprobs]]:
    return {0: [TokenLogprobs(token_id, -1.0, []) for token_id in token_ids]}


def test_a_drawn_token_is_appended() -> None:
    active = make_active()
    output = take(active, StepResult([5], [True], logprobs=logprobs(5)))
    assert (output.token_ids, output.finish_reason, active.sequence.tokens) == ([5], None, [1, 2, 3, 5])
    assert output.logprobs is not None and [record.token_id for record in output.logprobs] == [5]


def test_a_stop_token_ends_the_output_without_being_part_of_it() -> None:
    active = make_active()
    output = take(active, StepResult([STOP], [True], logprobs=logprobs(STOP)))
    assert (output.token_ids, output.stop_token_id, output.finish_reason) == ([], STOP, "stop")
    assert active.sequence.tokens == [1, 2, 3] and output.logprobs is None


@pytest.mark.parametrize("drawn", [5, STOP])
def test_a_stop_token_among_accepted_drafts_drops_what_follows(drawn: int) -> None:
    active = make_active()
    result = StepResult([drawn], [True], {0: [4, STOP, 6]}, logprobs=logprobs(4, STOP, 6, drawn))
    output = take(active, result, draft=(4, STOP, 6))
    assert (output.token_ids, output.stop_token_id, output.finish_reason) == ([4], STOP, "stop")
    assert (output.num_drafted, output.num_accepted) == (3, 1)
    assert active.sequence.tokens == [1, 2, 3, 4]
    assert output.logprobs is not None and [record.token_id for record in output.logprobs] == [4]


def test_max_tokens_counts_accepted_drafts() -> None:
    active = make_active(max_tokens=4)
    output = take(active, StepResult([7], [True], {0: [5, 6]}), draft=(5, 6))
    assert (output.token_ids, output.finish_reason) == ([5, 6, 7], "length")
