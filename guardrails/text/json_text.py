"""Replacements in a JSON document that comes in pieces: it stays one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from guardrails.scan.scanner import Replacer

_MARK = re.compile(r'["\\]')


class InJson:
    """A replacer for one JSON document: what takes a number's place becomes a string."""

    def __init__(self, replacer: Replacer) -> None:
        self._replacer = replacer
        self._in_string = False
        self._is_escaped = False  # the next character

    def open_from(self, text: str, start: int) -> int:
        """The first place on from `start` where a match may begin that more text could change."""
        return self._replacer.open_from(text, start)

    def replacements(self, text: str, start: int, settled: int) -> Iterator[tuple[int, int, str]]:
        """Start, end and replacement of matches; quoted where a number was, and never half an escape."""
        done = start
        for match_start, match_end, replacement in self._replacer.replacements(text, start, settled):
            self._read(text, done, match_start)
            is_bare = not self._in_string and replacement != text[match_start:match_end]
            kept = 0
            if self._is_escaped:  # the match begins inside an escape, as with the `n` of a line end
                kept = 5 if text[match_start] == "u" else 1
            self._read(text, match_start, match_end)
            done = match_end
            if match_start + kept < match_end:
                yield match_start + kept, match_end, f'"{replacement}"' if is_bare else replacement
        self._read(text, done, settled)

    def _read(self, text: str, start: int, end: int) -> None:
        """Follow the quotes in text[start:end]."""
        if self._is_escaped and start < end:
            start, self._is_escaped = start + 1, False
        while (mark := _MARK.search(text, start, end)) is not None:
            start = mark.end()
            if mark[0] == '"':
                self._in_string = not self._in_string
            elif start < end:
                start += 1
            else:
                self._is_escaped = True
