"""Attacks on the prompt that patterns recognise, in every view of a text.

High precision, not high recall: other wordings are the classifier's. Quantifiers are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import regex

from guardrails.cancellation import check_cancelled
from guardrails.findings import Finding, Segment
from guardrails.scan.prefilter import Prefilter
from guardrails.text.normalise import Reading, View, read

UNTRUSTED: tuple[Segment, ...] = ("tool", "document")
"""Segments that give information, and no instructions."""


def _rules(path: Path) -> Iterator[tuple[str, str]]:
    """(kind, pattern) of a file with `[kind]` heads, `NAME = …` fragments and patterns; a space is a gap."""
    kind = ""
    names: dict[str, str] = {}
    for line in path.read_text("utf-8").split("\n"):
        definition = _DEFINITION.match(line)
        if _HEAD.fullmatch(line):
            kind = line.strip("[]")
        elif definition is not None:
            names[definition[1]] = _expanded(definition[2], names)
        elif line and not line.startswith("#"):
            yield kind, _expanded(line, names)


def _expanded(pattern: str, names: dict[str, str]) -> str:
    for name, fragment in names.items():
        pattern = pattern.replace(f"<{name}>", f"(?:{fragment})")
    return pattern.replace(" ?", r"[\W_]{0,6}").replace(" ", r"[\W_]{1,6}")


_HEAD = regex.compile(r"\[[a-z]+\]")
_DEFINITION = regex.compile(r"([A-Z]+) = (.*)")
_SOURCES = tuple(_rules(Path(__file__).with_suffix(".txt")))
_PREFILTER = Prefilter([text for _, text in _SOURCES])


@cache
def _pattern(number: int) -> regex.Pattern[str]:
    """Compiled at first use: all of them take 0.2 s, and most processes never meet an attack."""
    return regex.compile(_SOURCES[number][1], regex.IGNORECASE | regex.DOTALL)


def find_injection(reading: Reading, segment: Segment = "user") -> list[Finding]:
    """The first attack of each kind in each view, as written first."""
    return [finding for view in reading.views for finding in _in_view(view, segment)]


def _in_view(view: View, segment: Segment) -> Iterator[Finding]:
    found: set[str] = set()
    for number in _PREFILTER.candidates(view.text):
        check_cancelled()
        kind = _SOURCES[number][0]
        if kind in found or (kind == "indirect" and segment not in UNTRUSTED):
            continue
        match = _pattern(number).search(view.text)
        if match is not None:
            found.add(kind)
            start, end = view.origin(match.start(), match.end())
            yield Finding("injection", kind, 1.0, start, end, f"pattern in {view.name}")


def kinds_of(text: str, segment: Segment = "user") -> list[str]:
    """The kinds of attack in a text."""
    return sorted({finding.kind for finding in find_injection(read(text), segment)})
