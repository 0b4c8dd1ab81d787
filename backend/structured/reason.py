"""What the library says against a grammar."""

from __future__ import annotations

from llguidance import LLMatcher


def reason(matcher: LLMatcher) -> str:
    """What the library says about an error, on one line of bounded length."""
    lines = [line for line in matcher.get_error().splitlines() if line and not line.startswith("<")]
    return " ".join(lines)[:300]
