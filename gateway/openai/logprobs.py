"""Log-probabilities in the two shapes of OpenAI's API: chat's objects and the older parallel lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.answer import TokenInfo

LEAST_LOGPROB = -9999.0
"""OpenAI's value for a probability of zero: JSON has no infinity."""


def chat_logprobs(tokens: Sequence[TokenInfo]) -> dict[str, Any]:
    """The value of `logprobs` in a chat choice."""
    return {
        "content": [
            {
                **_entry(info.token, info.token_bytes, info.logprob),
                "top_logprobs": [_entry(*each) for each in info.top],
            }
            for info in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[TokenInfo]) -> dict[str, Any]:
    """The value of `logprobs` in a completion choice; the sampled token is always among `top_logprobs`."""
    return {
        "tokens": [_shown(info.token, info.token_bytes) for info in tokens],
        "token_logprobs": [None if info.logprob is None else _finite(info.logprob) for info in tokens],
        "top_logprobs": [_top(info) for info in tokens],
        "text_offset": [info.text_offset for info in tokens],
    }


def _entry(token: str, token_bytes: bytes, logprob: float | None) -> dict[str, Any]:
    return {
        "token": token,
        "logprob": LEAST_LOGPROB if logprob is None else _finite(logprob),
        "bytes": list(token_bytes),
    }


def _top(info: TokenInfo) -> dict[str, float] | None:
    if info.logprob is None:
        return None
    best: dict[str, float] = {}
    for token, token_bytes, logprob in (*info.top, (info.token, info.token_bytes, info.logprob)):
        best.setdefault(_shown(token, token_bytes), _finite(logprob))  # of equal texts, the most likely
    return best


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def _shown(token: str, token_bytes: bytes) -> str:
    """The token's text; an incomplete UTF-8 sequence as "bytes:…", as OpenAI writes it."""
    if "\ufffd" not in token:
        return token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)
