"""Says in linear time which of many patterns may match a text, so that the others need not be tried.

RE2 runs all at once, made looser: without lookarounds and word boundaries, with open-ended repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import re2
import regex

MAX_MEMORY_BYTES = 64 * 2**20
"""Memory of the automaton, which grows with the texts that it has seen."""

_LOOKAROUND = regex.compile(r"\(\?<?[=!]")
_REPEATED = regex.compile(r"(?:\{(\d*)(,?)\d*\}|[*+?])[+?]?")
_LETTER = r"0-9A-Za-z_\x{80}-\x{10ffff}"


class Prefilter:
    """The automaton of some patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        options = re2.Options()
        options.case_sensitive = False
        options.dot_nl = True
        options.max_mem = MAX_MEMORY_BYTES
        self._set = re2.Set.SearchSet(options)
        self._needs: list[tuple[int, frozenset[int]]] = []  # (pattern, numbers of its parts in the set)
        for number, pattern in enumerate(patterns):
            for parts in loosened(pattern):
                self._needs.append((number, frozenset(map(self._set.Add, parts))))
        self._set.Compile()

    def candidates(self, text: str) -> list[int]:
        """Numbers of the patterns that may match, in order. The text must be encodable as UTF-8."""
        found = self._set.Match(text)
        if not found:
            return []
        return sorted({number for number, parts in self._needs if parts.issubset(found)})


def loosened(pattern: str) -> list[list[str]]:
    """For each alternative of a pattern, parts in RE2's syntax that all occur wherever it matches.

    They are what stands between gaps such as `.{0,80}`: an automaton that remembers them grows too large.
    """
    parts = [""]
    alternatives = [parts]
    place, depth, is_class = 0, 0, False
    while place < len(pattern):
        if not is_class and _LOOKAROUND.match(pattern, place):
            place = _end_of_group(pattern, place)
            continue
        repeated = None if is_class else _REPEATED.match(pattern, place)
        if repeated is not None:
            parts[-1] += _open_ended(repeated)
            place = repeated.end()
            continue
        size = 2 if pattern[place] == "\\" else 1
        item = pattern[place : place + size]
        place += size
        if not is_class and not depth and item == "|":
            parts = [""]
            alternatives.append(parts)
            continue
        gap = _REPEATED.match(pattern, place) if item == "." and not is_class and not depth else None
        if gap is not None:
            parts.append("")
            place = gap.end()
            continue
        depth += 0 if is_class else {"(": 1, ")": -1}.get(item, 0)
        is_class = item == "[" or (is_class and item != "]")
        parts[-1] += _ITEMS.get((item, is_class), item)
    return [[part for part in each if part] for each in alternatives]


_ITEMS = {(r"\w", True): _LETTER, (r"\w", False): f"[{_LETTER}]", (r"\b", False): ""}


def _open_ended(match: regex.Match[str]) -> str:
    if match[1] is None:
        return str(match[0])[0]
    least = int(match[1] or 0)
    if not match[2]:
        return f"{{{least}}}"
    return "*+"[least] if least < 2 else f"{{{least},}}"


def _end_of_group(pattern: str, place: int) -> int:
    depth, is_class = 0, False
    while True:
        char = pattern[place]
        if char == "\\":
            place += 1
        elif is_class:
            is_class = char != "]"
        else:
            is_class = char == "["
            depth += {"(": 1, ")": -1}.get(char, 0)
        place += 1
        if not depth:
            return place
