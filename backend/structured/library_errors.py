"""llguidance's error messages, shortened for users."""

from __future__ import annotations

import re
from itertools import takewhile

from llguidance import LLMatcher

_DEAD_END = "NoExtension"
_SOURCE_LINE = re.compile(r"\s*\d+ \| ")


def error_summary(matcher: LLMatcher) -> str:
    """Return the matcher's error on one line of bounded length.

    Omits the excerpt of the source: in a grammar composed of several schemas it may show another schema.
    """
    lines = takewhile(lambda line: not _SOURCE_LINE.match(line), matcher.get_error().splitlines())
    text = " ".join(line for line in lines if line and not line.startswith("<"))
    return "nothing satisfies it" if text.startswith(_DEAD_END) else text[:300]


def generation_error(matcher: LLMatcher) -> str:
    """Return a message for the user about an error during generation."""
    if matcher.get_error().startswith(_DEAD_END):
        return (
            "the grammar of this request cannot be completed from here: nothing satisfies what comes next; "
            "correct that rule or schema"
        )
    return f"the grammar of this request became too complex: {error_summary(matcher)}"
