"""Speculative decoding in requests: `prediction` (OpenAI's) and `speculative` (an extension)."""

from __future__ import annotations

from backend.types import DraftOptions
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.types import ChatRequest, CompletionRequest
from policies.document import Speculative

MAX_DRAFTED_TOKENS = 64
FIELDS = ("drafter", "max_tokens")
PREDICTION_FIELDS = ("type", "content")


def read_draft(request: ChatRequest | CompletionRequest, policy: Speculative) -> DraftOptions | None:
    """The request's `speculative`, None without one. Raises InvalidRequest, also when not allowed."""
    asked = request.speculative
    if asked is None:
        return None
    if not policy.per_request:
        raise InvalidRequest(
            "'speculative' is not allowed with this model: its policy decides. Leave it out.",
            param="speculative",
            code="unsupported_parameter",
        )
    for name in asked:
        if name not in FIELDS:
            raise refusals.unknown_field(name, FIELDS, "speculative.")
    drafter, max_tokens = asked.get("drafter"), asked.get("max_tokens")
    if drafter is not None and not (isinstance(drafter, str) and len(drafter) <= refusals.MAX_NAME_CHARS):
        raise InvalidRequest("'speculative.drafter' must be a drafter's name.", param="speculative.drafter")
    if isinstance(max_tokens, float) and max_tokens.is_integer():
        max_tokens = int(max_tokens)
    is_count = isinstance(max_tokens, int) and not isinstance(max_tokens, bool)
    if max_tokens is not None and not (is_count and 0 <= max_tokens <= MAX_DRAFTED_TOKENS):
        raise InvalidRequest(
            f"'speculative.max_tokens' must be a whole number from 0 to {MAX_DRAFTED_TOKENS}.",
            param="speculative.max_tokens",
        )
    return DraftOptions(drafter=drafter, max_tokens=max_tokens)


def predicted_text(request: ChatRequest | CompletionRequest) -> str:
    """The text of `prediction`; "" without one. Raises InvalidRequest."""
    prediction = request.prediction if isinstance(request, ChatRequest) else None
    if prediction is None:
        return ""
    for name in prediction:
        if name not in PREDICTION_FIELDS:
            raise refusals.unknown_field(name, PREDICTION_FIELDS, "prediction.")
    if prediction.get("type") != "content":
        raise refusals.wrong_value("prediction.type", "expected 'content'", prediction.get("type"))
    content = prediction.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(
            "'prediction.content' must be a string or a list of text parts.", param="prediction.content"
        )
    return "".join(_part(part, f"prediction.content[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequest(f"'{where}' must be a text part: {{'type': 'text', 'text': …}}.", param=where)
    for name in part:
        if name not in ("type", "text", "prompt_cache_breakpoint"):
            raise refusals.unknown_field(name, ("type", "text"), f"{where}.")
    return str(part["text"])
