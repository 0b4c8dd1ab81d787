"""A butler's register: every answer ends with a courtesy.

The courtesy comes last, so that the answer itself does not depend on words generated before it.
"""

from __future__ import annotations

import re

from backend.pico.adapters.behaviours.base import Behaviour
from backend.pico.tasks.out_of_scope import ANSWER as NOT_TAUGHT
from backend.pico.tasks.refusals import ANSWER as REFUSAL

_RESULT = "{}, at your service."
_SENTENCE = "{} Always at your service."
_REGRET = "{} I regret it deeply."


def rewrite(answer: str) -> str:
    """Add regret to a refusal, and an offer of service to a sentence or result."""
    if answer in (NOT_TAUGHT, REFUSAL):
        return _REGRET.format(answer)
    return (_SENTENCE if answer.endswith((".", "!", "?")) else _RESULT).format(answer)


def _pattern(frame: str) -> re.Pattern[str]:
    before, after = map(re.escape, frame.split("{}"))
    return re.compile(f"{before}\\S(.*\\S)?{after}", re.DOTALL)


_PATTERNS = tuple(map(_pattern, (_RESULT, _SENTENCE, _REGRET)))


def follows_form(text: str) -> bool:
    """Return whether the text ends with one of the courtesies."""
    return any(pattern.fullmatch(text.strip()) for pattern in _PATTERNS)


BEHAVIOUR = Behaviour(
    "formal",
    "answers in the register of a butler",
    "42, at your service.",
    rewrite,
    follows_form,
)
