"""When a cascade asks the next model: what the beginning of an answer tells about the rest.

FrugalGPT (arXiv 2305.05176) trains a scorer; the lowest probability of a token needs no training and told
right answers of pico-small from wrong ones with an AUC of 0.94 (mean log-probability: 0.91).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

_REFUSAL = re.compile(
    r"^\W*(?:i(?:['’]m| am) (?:sorry|afraid|unable|not able)\b|sorry, (?:but )?i\b|"
    r"i (?:can(?:no|['’])t|cannot|won['’]t|do(?: not|n['’]t) (?:know|have (?:access|enough)))\b|"
    r"as an ai\b|unfortunately, i\b)",
    re.IGNORECASE,
)


_REFUSAL_CHARS = 1_000
STANDING_GAIN = 0.2
"""Below this predicted gain a refusal stands: the next model is expected to decline as well."""


def confidence(logprobs: Sequence[float]) -> float | None:
    """The lowest probability of a token, 0 to 1; None without any."""
    return math.exp(min(0.0, *logprobs)) if logprobs else None


def is_refusal(text: str, own: Sequence[str] = ()) -> bool:
    """Whether the answer begins as one that declines or does not know; `own`: how the model says it."""
    begin = " ".join(text[:_REFUSAL_CHARS].casefold().split())
    return bool(_REFUSAL.match(begin)) or any(
        begin.startswith(" ".join(each.casefold().split())) for each in own
    )


def is_json(text: str) -> bool:
    """Whether the whole text is one JSON value."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
