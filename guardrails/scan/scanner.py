"""Replaces matches in a text that comes in pieces: the result does not depend on how it was cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Protocol

import regex

from guardrails.cancellation import check_cancelled

CONTEXT_CHARS = 64
"""Sent text that is kept before what is held back. A rule may look behind a match by this much at most."""

PIECE_CHARS = 4096
"""Length of a piece of a text: rules look at all that is left after each match, which took minutes."""

_NEVER = "\U0010ffff"
"""A noncharacter: a pattern that ends with it has no match, so that all its partial matches are found."""

Replace = Callable[[regex.Match[str]], "str | None"]


class Blocked(Exception):
    """The text holds what a policy forbids; `kind` says what, never the text.

    `start` is the place in the text, `sent` the screened text before it that can still be sent.
    """

    def __init__(self, kind: str, start: int = 0, sent: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.start = start
        self.sent = sent


class Replacer(Protocol):
    """What to find in a text, and its replacements.

    A search that starts behind a replaced match, or anywhere before `open_from`, must find what a search from
    the start of the text finds there; CONTEXT_CHARS before the start are there to be looked at.
    """

    def open_from(self, text: str, start: int) -> int:
        """The first place on from `start` where a match may begin that more text could change."""

    def replacements(self, text: str, start: int, settled: int) -> Iterator[tuple[int, int, str]]:
        """Start, end and replacement of the matches that begin in [start, settled). It may raise Blocked."""


class Rule:
    """Replaces the matches of a pattern; `replace` gives None where a match is none after all."""

    def __init__(self, pattern: regex.Pattern[str], replace: Replace) -> None:
        self._pattern = pattern
        self._replace = replace
        self._open_pattern = _open_pattern(pattern.pattern, pattern.flags)

    def open_from(self, text: str, start: int) -> int:
        """Where the first partial match begins that reaches the end of the text."""
        open_match = self._open_pattern.search(text, start, partial=True)
        return len(text) if open_match is None else open_match.start()

    def replacements(self, text: str, start: int, settled: int) -> Iterator[tuple[int, int, str]]:
        """The matches from left to right. No path through the pattern has reached the end of the text."""
        match = self._pattern.search(text, start)
        while match is not None and match.start() < settled:
            try:
                replacement = self._replace(match)
            except Blocked as blocked:
                raise Blocked(blocked.kind, match.start()) from None
            if replacement is not None:
                yield match.start(), match.end(), replacement
            next_start = match.start() + 1 if replacement is None else max(match.end(), match.start() + 1)
            match = self._pattern.search(text, next_start)


@cache
def _open_pattern(pattern: str, flags: int) -> regex.Pattern[str]:
    """Matches partially where a match may begin that needs more text to end or to be decided."""
    return regex.compile(f"(?:{pattern}){_NEVER}", flags)


class Scanner:
    """Holds back the text from the first place on at which a match may be open."""

    def __init__(self, rule: Replacer) -> None:
        self._rule = rule
        self._text = ""
        self._start = 0  # of what has not been sent

    def feed(self, text: str) -> str:
        """What can be sent after this piece. Raises Blocked with what can be sent before the block."""
        if not text:
            return ""
        self._text += text
        sent = self._scan(self._rule.open_from(self._text, self._start))
        kept = max(0, self._start - CONTEXT_CHARS)
        self._text, self._start = self._text[kept:], self._start - kept
        return sent

    def finish(self, text: str = "") -> str:
        """The rest: the text has ended with this piece."""
        self._text += text
        return self._scan(len(self._text))

    def _scan(self, settled: int) -> str:
        text, start = self._text, self._start
        sent: list[str] = []
        try:
            for match_start, match_end, replacement in self._rule.replacements(text, start, settled):
                sent += text[start:match_start], replacement
                start = match_end
        except Blocked as blocked:
            before = "".join(sent) + text[start : blocked.start]
            raise Blocked(blocked.kind, blocked.start, before) from None
        self._start = max(start, settled)
        sent.append(text[start : self._start])
        return "".join(sent)


def scan(rule: Replacer, text: str) -> str:
    """A whole text with its matches replaced. Raises Blocked or Cancelled."""
    scanner = Scanner(rule)
    starts = range(0, len(text), PIECE_CHARS)
    pieces = []
    for start in starts:
        check_cancelled()
        pieces.append(scanner.feed(text[start : start + PIECE_CHARS]))
    return "".join([*pieces, scanner.finish()])
