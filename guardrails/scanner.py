"""Replaces matches in a text that comes in pieces: the result does not depend on how it was cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import regex

CONTEXT_CHARS = 16
"""Sent text that is kept before what is held back: patterns look behind themselves by one character."""

_NEVER = "\U0010ffff"
"""A noncharacter: a pattern that ends with it has no match, so that all its partial matches are found."""

Replace = Callable[[regex.Match[str]], "str | None"]


class Rule:
    """What to find, and its replacement; None where a match is none after all. `replace` may raise."""

    def __init__(self, pattern: regex.Pattern[str], replace: Replace) -> None:
        self.pattern = pattern
        self.replace = replace
        self.open_pattern = open_pattern(pattern.pattern, pattern.flags)


@cache
def open_pattern(pattern: str, flags: int) -> regex.Pattern[str]:
    """Matches partially where a match may begin that needs more text to end or to be decided."""
    return regex.compile(f"(?:{pattern}){_NEVER}", flags)


class Scanner:
    """Holds back the text from the first place on at which a match may be open.

    A match that begins before that place is the same whatever follows: no path through the pattern has
    reached the end of the text.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._text = ""
        self._start = 0  # of what has not been sent

    def feed(self, text: str) -> str:
        """What can be sent after this piece."""
        self._text += text
        return self._scan(is_last=False)

    def finish(self) -> str:
        """The rest: the text has ended."""
        return self._scan(is_last=True)

    def _scan(self, *, is_last: bool) -> str:
        sent: list[str] = []
        settled = len(self._text)
        if not is_last:
            open_match = self._rule.open_pattern.search(self._text, self._start, partial=True)
            settled = settled if open_match is None else open_match.start()
        while self._start < settled:
            match = self._rule.pattern.search(self._text, self._start)
            if match is None or match.start() >= settled:
                self._send(sent, settled)
            else:
                self._send_match(sent, match)
        kept = max(0, self._start - CONTEXT_CHARS)
        self._text, self._start = self._text[kept:], self._start - kept
        return "".join(sent)

    def _send(self, sent: list[str], end: int) -> None:
        sent.append(self._text[self._start : end])
        self._start = end

    def _send_match(self, sent: list[str], match: regex.Match[str]) -> None:
        replacement = self._rule.replace(match)
        if replacement is None:
            self._send(sent, match.start() + 1)
        else:
            self._send(sent, match.start())
            sent.append(replacement)
            self._start = match.end()


def scan(rule: Rule, text: str) -> str:
    """A whole text with its matches replaced."""
    scanner = Scanner(rule)
    return scanner.feed(text) + scanner.finish()
