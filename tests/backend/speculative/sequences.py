"""Sequences for tests of drafters."""

from __future__ import annotations

from backend.types import Request, SamplingParams, Sequence, SequenceStatus


def running(
    prompt: list[int], output: list[int] | None = None, *, salt: str = "", adapter: str = "", **fields: object
) -> Sequence:
    request = Request(
        request_id="r",
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=100),
        tenant_salt=salt,
        adapter=adapter,
        **fields,  # type: ignore[arg-type]
    )
    sequence = Sequence(request, prompt + (output or []), len(prompt), status=SequenceStatus.RUNNING)
    sequence.num_computed_tokens = len(sequence.tokens) - 1
    return sequence


def ended(prompt: list[int], output: list[int], **fields: str) -> Sequence:
    sequence = running(prompt, output, **fields)
    sequence.status, sequence.finish_reason = SequenceStatus.FINISHED, "stop"
    return sequence
