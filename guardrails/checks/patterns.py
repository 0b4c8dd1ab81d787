"""Words and regular expressions that operators write, found in linear time, also in a stream.

RE2 runs the expressions: no input makes it backtrack. It cannot match partially, so a second expression,
built from the first, matches every beginning of a match: where that reaches the end, a match is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import re2
import regex

from guardrails.scan.pattern_prefix import UnsupportedPattern, beginnings
from guardrails.scan.scanner import Blocked, Replacer, Rule

MAX_MEMORY_BYTES = 4 * 2**20
"""Memory of one compiled expression; RE2 refuses larger ones."""


MAX_COMPILED = 1024


def words_rule(words: Sequence[str], replacement: Callable[[], str | None]) -> Replacer:
    """Finds words and phrases, in any case, also across lines. `replacement` gives None to keep a match."""
    return Rule(_alternatives(tuple(words)), lambda match: replacement())


@lru_cache(MAX_COMPILED)
def _alternatives(words: tuple[str, ...]) -> regex.Pattern[str]:
    escaped = [r"\s{1,8}".join(map(regex.escape, word.split())) for word in words]
    longest_first = "|".join(sorted(escaped, key=len, reverse=True))
    start = r"(?:(?<!\w)|(?<=\\[nrt]))"  # line ends are escaped in JSON
    return regex.compile(rf"{start}(?:{longest_first})(?!\w)", regex.IGNORECASE)


class LinearRule:
    """Finds the matches of an expression in RE2's syntax."""

    def __init__(self, pattern: str, replacement: Callable[[], str | None]) -> None:
        """Raises UnsupportedPattern."""
        self._replacement = replacement
        self._pattern = _compiled(pattern)
        self._open = _compiled(rf"(?:{beginnings(pattern)})\z")
        if self._pattern.search("") is not None:
            raise UnsupportedPattern("it matches the empty text")

    def open_from(self, text: str, start: int) -> int:
        """Where the first match may begin that reaches the end of the text."""
        found = self._open.search(text, start)
        return len(text) if found is None else int(found.start())

    def replacements(self, text: str, start: int, settled: int) -> Iterator[tuple[int, int, str]]:
        """The matches from left to right."""
        for match in self._pattern.finditer(text, start):
            if match.start() >= settled:
                return
            try:
                replacement = self._replacement()
            except Blocked as blocked:
                raise Blocked(blocked.kind, match.start()) from None
            if replacement is not None:
                yield match.start(), match.end(), replacement


@lru_cache(MAX_COMPILED)
def _compiled(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        raise UnsupportedPattern(reason.decode() if isinstance(reason, bytes) else str(reason)) from None
