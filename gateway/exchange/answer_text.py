"""The text of an answer of any provider."""

from __future__ import annotations

from gateway.answer import Generated, Relayed
from gateway.providers.upstream.generated import in_deltas


async def whole_text(answer: Generated | Relayed) -> str:
    """The visible text of all choices, when the answer has ended. Raises ApiError where it fails."""
    return "".join([delta.text async for delta in in_deltas(answer).deltas])
