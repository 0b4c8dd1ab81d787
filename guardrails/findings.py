"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Segment = Literal["system", "user", "tool", "document"]
"""Who wrote a text, and so how far it is trusted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in a text; never the text itself."""

    check: str  # injection, harmful_topic, toxicity …
    kind: str  # override, jailbreak, extraction, indirect; a category
    score: float  # 0 to 1; patterns: 1
    start: int
    end: int
    reason: str  # as `pattern in base64`, `classifier in clean`
