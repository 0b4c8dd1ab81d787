"""Where the content of a streamed answer begins: what comes before it may still be withdrawn."""

from __future__ import annotations

from gateway.answer import Delta


def is_content(delta: Delta) -> bool:
    """Whether a client sees text, reasoning or a call of a tool in it."""
    return bool(delta.text or delta.reasoning or delta.tool_calls)
