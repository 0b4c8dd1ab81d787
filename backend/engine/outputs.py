"""From drawn tokens to StepOutputs: stop tokens, grammars and max_tokens decide where an output ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backend.engine.grammars import advance_drafts
from backend.engine.runner_protocol import StepResult
from backend.types import ScheduledChunk, Sequence, StepOutput, TokenGrammar

AppendToken = Callable[[Sequence, int], None]


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """An unfinished request."""

    sequence: Sequence
    stop_ids: frozenset[int]  # tokens that end it; not part of the output


def cut_accepted(active: ActiveRequest, result: StepResult, i: int) -> list[int]:
    """The accepted drafts before the i-th drawn token, up to one that ends the sequence.

    Such a token becomes the i-th drawn token of `result`, and what follows it is dropped. Advances the
    grammar over the returned tokens.
    """
    tokens = result.accepted.get(i, [])
    end = next((n for n, token_id in enumerate(tokens) if token_id in active.stop_ids), None)
    if active.sequence.grammar is not None:
        completed_at = advance_drafts(active.sequence.grammar, tokens[:end])
        if completed_at is not None:
            end = completed_at
            if i in result.logprobs:
                result.logprobs[i] = result.logprobs[i][: end + 1]
    if end is not None:
        result.token_ids[i], result.accepted[i] = tokens[end], tokens[:end]
    return tokens[:end]


def build_output(
    active: ActiveRequest, chunk: ScheduledChunk, result: StepResult, i: int, append_token: AppendToken
) -> StepOutput:
    """The output of the i-th drawn token, which `append_token` adds to its sequence.

    Accepted drafts are in the sequence already (`cut_accepted`) and are part of the output.
    """
    sequence, token_id = active.sequence, result.token_ids[i]
    request, grammar = sequence.request, sequence.grammar
    accepted = result.accepted.get(i, []) if result.accepted else []
    output = StepOutput(
        request_id=request.request_id,
        token_ids=[*accepted, token_id],
        num_cached_tokens=sequence.num_cached_tokens,
    )
    if chunk.draft:
        output.num_drafted, output.num_accepted = len(chunk.draft), len(accepted)
    if grammar is not None and grammar.error:
        return _without_tokens(output, sequence, grammar)
    if result.prompt_logprobs:
        output.prompt_logprobs = result.prompt_logprobs.get(i)
    records = result.logprobs.get(i) if result.logprobs else None
    if token_id in active.stop_ids:
        output.token_ids, output.stop_token_id, output.finish_reason = accepted, token_id, "stop"
        if records is not None and accepted:
            output.logprobs = records[: len(accepted)]
        return output
    output.logprobs = records
    append_token(sequence, token_id)
    if grammar is not None:
        grammar.advance(token_id)
        if grammar.error:
            return _without_tokens(output, sequence, grammar)
        if grammar.is_over:
            output.finish_reason = "stop"
            return output
    if len(sequence.tokens) - sequence.num_prompt_tokens >= request.params.max_tokens:
        output.finish_reason = "length"
    return output


def _without_tokens(output: StepOutput, sequence: Sequence, grammar: TokenGrammar) -> StepOutput:
    """The output of a sequence whose grammar failed, without the tokens drawn in this step."""
    spec = sequence.request.grammar
    output.token_ids, output.logprobs, output.finish_reason = [], None, "error"
    output.error, output.error_param = grammar.error, spec.param if spec is not None else ""
    return output
