"""Token counts in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from gateway.answer import Usage
from gateway.exchange.shape import own_counts


def usage_object(usage: Usage) -> dict[str, Any]:
    """The value of `usage` in chat and completion answers."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        },
        **own_counts(usage),
    }
