"""Second line of defence: one invalid id would fail the whole batch.

The gateway checks the same fields first, with better messages.
"""

from __future__ import annotations

import math

from backend.errors import RequestError
from backend.types import Request, SamplingParams

MAX_LOGPROBS = 100

MAX_PROMPT_ENTRIES = 2**20
"""Log-probabilities of one prompt: they are sent in one frame, on a connection that requests share."""

_MAX_TOP_K = 2**31 - 1


def check_request(request: Request, vocab_size: int) -> None:
    """Raise RequestError, with the name of the field, if the engine cannot serve this request."""
    prompt = request.prompt_token_ids
    if not prompt:
        raise RequestError("the prompt has no tokens; send at least one", "prompt")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        wrong = next(token for token in prompt if not 0 <= token < vocab_size)
        raise RequestError(f"prompt token id {wrong!r} is outside the vocabulary of {vocab_size}", "prompt")
    _check_params(request.params, vocab_size)
    _check_resumed(request, vocab_size)
    num_top = request.params.prompt_logprobs
    if num_top is not None and len(prompt) * (num_top + 1) > MAX_PROMPT_ENTRIES:
        raise RequestError(
            f"prompt_logprobs is {num_top!r} for {len(prompt)} prompt tokens; ask for at most "
            f"{MAX_PROMPT_ENTRIES} log-probabilities in total",
            "prompt_logprobs",
        )


def _check_resumed(request: Request, vocab_size: int) -> None:
    resumed = request.resume_token_ids
    if not resumed:
        return
    if len(resumed) >= request.params.max_tokens:
        raise RequestError(
            f"resume_token_ids has {len(resumed)} tokens of at most {request.params.max_tokens} in all; "
            "resume only an output that is not complete",
            "resume_token_ids",
        )
    if min(resumed) < 0 or max(resumed) >= vocab_size:
        wrong = next(token for token in resumed if not 0 <= token < vocab_size)
        raise RequestError(
            f"token id {wrong!r} is outside the vocabulary of {vocab_size}", "resume_token_ids"
        )


def _check_params(params: SamplingParams, vocab_size: int) -> None:
    ranges: list[tuple[str, float, float, float]] = [
        ("max_tokens", params.max_tokens, 0, math.inf),
        ("temperature", params.temperature, 0, 100),
        ("top_p", params.top_p, 0, 1),
        ("top_k", params.top_k, 0, _MAX_TOP_K),
        ("min_p", params.min_p, 0, 1),
        ("repetition_penalty", params.repetition_penalty, 1e-3, 1e3),
        ("presence_penalty", params.presence_penalty, -100, 100),
        ("frequency_penalty", params.frequency_penalty, -100, 100),
        ("min_tokens", params.min_tokens, 0, params.max_tokens),
        ("logprobs", params.logprobs or 0, 0, MAX_LOGPROBS),
        ("prompt_logprobs", params.prompt_logprobs or 0, 0, MAX_LOGPROBS),
    ]
    for name, value, low, high in ranges:
        if not low <= value <= high:  # also rejects NaN
            raise RequestError(f"{name} is {value!r}; it must be between {low:g} and {high:g}", name)
    for token_id, bias in params.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"token id {token_id!r} is outside the vocabulary of {vocab_size}", "logit_bias"
            )
        if not -1e4 <= bias <= 1e4:
            raise RequestError(
                f"the bias of token {token_id} is {bias!r}; keep it within ±10000", "logit_bias"
            )
    for token_id in params.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"token id {token_id!r} is outside the vocabulary of {vocab_size}", "stop_token_ids"
            )
