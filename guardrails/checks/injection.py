"""Attacks on the prompt that patterns recognise, in every view of a text.

High precision, not high recall: other wordings are the classifier's. Quantifiers are bounded, and a pattern
is tried only where one of its cues occurs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import regex

from guardrails.findings import Finding, Segment
from guardrails.normalise import Reading, View, read

UNTRUSTED: tuple[Segment, ...] = ("tool", "document")
"""Segments that give information, and no instructions."""


class _Rule:
    """A pattern of a kind of attack, and its cues, one of which every match holds."""

    def __init__(self, kind: str, cues: str, pattern: str) -> None:
        self.kind = kind
        self.cues = tuple(cues.split("|"))
        self.pattern = regex.compile(pattern, regex.IGNORECASE | regex.DOTALL)


def _rules(path: Path) -> Iterator[_Rule]:
    """`[kind]` heads, `NAME = …` fragments, `cue|cue :: pattern` rules; a space is a gap."""
    kind = ""
    names: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif " :: " in line:
            cues, _, pattern = line.partition(" :: ")
            yield _Rule(kind, cues, _expanded(pattern, names))
        elif " = " in line:
            name, _, fragment = line.partition(" = ")
            names[name] = _expanded(fragment, names)


def _expanded(pattern: str, names: dict[str, str]) -> str:
    for name, fragment in names.items():
        pattern = pattern.replace(f"<{name}>", f"(?:{fragment})")
    return pattern.replace(" ?", r"[\W_]{0,6}").replace(" ", r"[\W_]{1,6}")


_RULES = tuple(_rules(Path(__file__).with_suffix(".txt")))


def find_injection(reading: Reading, segment: Segment = "user") -> list[Finding]:
    """The first attack of each kind in each view, as written first."""
    return [finding for view in reading.views for finding in _in_view(view, segment)]


def _in_view(view: View, segment: Segment) -> Iterator[Finding]:
    lower = view.text.lower()
    found: set[str] = set()
    for rule in _RULES:
        if rule.kind in found or (rule.kind == "indirect" and segment not in UNTRUSTED):
            continue
        if not any(cue in lower for cue in rule.cues):
            continue
        match = rule.pattern.search(view.text)
        if match is not None:
            found.add(rule.kind)
            start, end = view.origin(match.start(), match.end())
            yield Finding("injection", rule.kind, 1.0, start, end, f"pattern in {view.name}")


def kinds_of(text: str, segment: Segment = "user") -> list[str]:
    """The kinds of attack in a text."""
    return sorted({finding.kind for finding in find_injection(read(text), segment)})
