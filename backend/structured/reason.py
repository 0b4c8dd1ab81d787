"""What the library says against a grammar."""

from __future__ import annotations

import re
from itertools import takewhile

from llguidance import LLMatcher

_DEAD_END = "NoExtension"
_SOURCE_LINE = re.compile(r"\s*\d+ \| ")


def reason(matcher: LLMatcher) -> str:
    """What the library says about an error, on one line of bounded length.

    Without the source around the place: of a grammar made of several schemas that shows the others' as well.
    """
    lines = takewhile(lambda line: not _SOURCE_LINE.match(line), matcher.get_error().splitlines())
    text = " ".join(line for line in lines if line and not line.startswith("<"))
    return "nothing satisfies it" if text.startswith(_DEAD_END) else text[:300]


def sentence(matcher: LLMatcher) -> str:
    """The same of an error on the way, to the user."""
    if matcher.get_error().startswith(_DEAD_END):
        return (
            "the grammar of this request can never be completed from here: nothing satisfies what is next; "
            "mend that rule or schema"
        )
    return f"the grammar of this request became too complex: {reason(matcher)}"
