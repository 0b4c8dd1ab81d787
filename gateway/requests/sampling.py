"""Sampling fields and token limits → the engine's sampling parameters, one set per choice."""

from __future__ import annotations

import re
import secrets

import msgspec

from backend.identifiers import quoted
from backend.types import SamplingParams
from gateway.errors import InvalidRequest
from gateway.requests.types import ChatRequest, CompletionRequest, GenerationRequest

SEED_SPAN = 2**64
SEED_OFFSET = 2**63


def base_params(request: ChatRequest | CompletionRequest, vocab_size: int) -> SamplingParams:
    """Parameters without `max_tokens`, which depends on the prompt. Raises InvalidRequest."""
    temperature = 1.0 if request.temperature is None else request.temperature
    if request.top_p == 0.0:  # keeps only the most likely token: greedy
        temperature = 0.0
    stop_token_ids = tuple(request.stop_token_ids or ())
    for token_id in stop_token_ids:
        _check_token(token_id, vocab_size, "stop_token_ids")
    return SamplingParams(
        max_tokens=0,
        temperature=temperature,
        top_p=request.top_p or 1.0,
        top_k=max(request.top_k or 0, 0),
        min_p=request.min_p or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_logit_bias(request, vocab_size),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=stop_token_ids,
        logprobs=request.num_logprobs,
    )


def choice_params(
    base: SamplingParams, request: GenerationRequest, index: int, max_tokens: int
) -> SamplingParams:
    """Parameters of choice `index`. Equal seeds would give equal choices, so each gets its own.

    A seed is drawn here where none was sent, for an engine that restarts to go on with the same text.
    """
    seed = request.seed
    if seed is not None:
        seed = (seed + index + SEED_OFFSET) % SEED_SPAN - SEED_OFFSET
    elif not base.is_greedy:
        seed = secrets.randbits(63)
    return msgspec.structs.replace(base, seed=seed, max_tokens=max_tokens)


def max_tokens_for(requested: int | None, prompt_tokens: int, max_model_tokens: int, param: str) -> int:
    """Tokens to generate: as requested, or as many as the context has room for.

    Raises InvalidRequest, code context_length_exceeded, when prompt and answer do not fit the context.
    """
    left = max_model_tokens - prompt_tokens
    what = "messages" if param == "messages" else "prompt"
    if left < 1 and (requested is None or requested > left):
        raise InvalidRequest(
            f"This model's maximum context length is {max_model_tokens} tokens. However, your {what} "
            f"resulted in {prompt_tokens} tokens. Please reduce the length of the {what}.",
            param=param,
            code="context_length_exceeded",
        )
    if requested is not None and requested > left:
        raise InvalidRequest(
            f"This model's maximum context length is {max_model_tokens} tokens. However, you requested "
            f"{prompt_tokens + requested} tokens ({prompt_tokens} in the {what}, {requested} in the "
            f"completion). Please reduce the length of the {what} or completion.",
            param=param,
            code="context_length_exceeded",
        )
    return left if requested is None else requested


def check_request(request: ChatRequest | CompletionRequest) -> None:
    """Check rules between fields. Raises InvalidRequest."""
    limit = request.token_limit
    if limit is not None and request.min_tokens is not None and request.min_tokens > limit:
        raise InvalidRequest(
            f"'min_tokens' ({request.min_tokens}) is larger than the token limit ({limit}).",
            param="min_tokens",
        )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "'stream_options' needs 'stream': true. Leave it out, or stream.", param="stream_options"
        )
    if isinstance(request, ChatRequest):
        _check_chat(request)
    elif request.best_of is not None and request.best_of != request.num_choices:
        raise InvalidRequest(
            f"'best_of' ({request.best_of}) other than 'n' ({request.num_choices}) is not supported: "
            "candidates beyond n are not generated. Leave it out.",
            param="best_of",
            code="unsupported_parameter",
        )


def _check_chat(request: ChatRequest) -> None:
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise InvalidRequest(
            "'max_tokens' and 'max_completion_tokens' exclude each other. Send 'max_completion_tokens'.",
            param="max_tokens",
        )
    if not request.continue_final_message:
        return
    if request.add_generation_prompt:
        raise InvalidRequest(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            param="continue_final_message",
        )
    if request.messages[-1].get("role") != "assistant":
        raise InvalidRequest(
            "'continue_final_message' needs a last message of the role 'assistant'.",
            param="continue_final_message",
        )


def check_prompt(token_ids: list[int], vocab_size: int) -> None:
    """Raise InvalidRequest for a prompt without tokens, or with an id outside of the vocabulary."""
    if not token_ids:
        raise InvalidRequest("'prompt' is empty: give at least one token.", param="prompt")
    _check_token(max(token_ids), vocab_size, "prompt")


def _check_token(token_id: int, vocab_size: int, param: str) -> None:
    if token_id >= vocab_size:
        raise InvalidRequest(
            f"Token id {token_id} in '{param}' is out of range: this model has {vocab_size} tokens.",
            param=param,
        )


_BIAS_KEY = re.compile(r"[ -~]{0,16}")
"""What an error quotes: too short for a text of a prompt."""


def _logit_bias(request: GenerationRequest, vocab_size: int) -> dict[int, float]:
    biases: dict[int, float] = {}
    for key, bias in (request.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            shown = quoted(key, _BIAS_KEY, f"of {len(key)} characters")
            raise InvalidRequest(
                f"The key {shown} of 'logit_bias' is no token id. Write token ids as decimal numbers.",
                param="logit_bias",
                code="invalid_value",
            )
        _check_token(int(key), vocab_size, "logit_bias")
        biases[int(key)] = bias
    return biases
