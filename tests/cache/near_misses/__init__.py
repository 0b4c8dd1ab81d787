"""Near misses by kind: pairs of questions that look alike and have different answers, and paraphrases.

Templates and word lists of our own. `python -m tests.cache.near_misses FILE` writes them as JSON lines for
`penstock eval cache --pairs FILE --kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

FOLDER = Path(__file__).parent
LONG = "long prompt"
NUM_SENTENCES = 8
"""Sentences of a long prompt: about 130 words."""
_SLOT = re.compile(r"\{([a-z]+(?:_[a-z]+)*?)(_low)?(\d?)\}")
_TRIES = 40
FRAMES = (
    "{}", "Quick question: {}", "{} Thanks!", "Hello! {}", "I was wondering: {}", "{} Please be precise.",
    "Hi there, {}", "My friend asks: {}", "Dear assistant, {}", "{} I could not find that anywhere.",
)  # fmt: skip
"""What is around both questions, once all values of a kind have been used."""


class Pair(NamedTuple):
    """Two questions, whether one answer serves both, and what distinguishes them."""

    a: str
    b: str
    same: bool
    kind: str


class Template(NamedTuple):
    """Two wordings with slots."""

    a: str
    b: str
    same: bool
    kind: str


def read_lists() -> dict[str, list[str]]:
    """The values that each slot may have."""
    lines = (line for line in (FOLDER / "words.txt").read_text("utf-8").split("\n") if " = " in line)
    return {name: values.split(" | ") for name, _, values in (line.partition(" = ") for line in lines)}


def read_templates() -> list[Template]:
    """All lines of all files, in order."""
    found, kind = [], ""
    for name in ("english.txt", "code.txt", "languages.txt", "paraphrases.txt"):
        for line in (FOLDER / name).read_text("utf-8").split("\n"):
            if line.startswith("# "):
                continue
            if re.fullmatch(r"\[[\w ,-]+\]", line):
                kind = line[1:-1]
            elif " => " in line or (" == " in line and name == "paraphrases.txt"):
                a, separator, b = line.partition(" == " if name == "paraphrases.txt" else " => ")
                found.append(Template(a, b, separator == " == ", kind))
    return found


class Generator:
    """Fills templates; the same pairs for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = Random(seed)
        self._lists = read_lists()

    def pairs(self, count: int) -> Iterator[Pair]:
        """Up to `count` different pairs of each kind, from all templates of the kind alike."""
        by_kind: dict[str, list[Template]] = {}
        for template in read_templates():
            by_kind.setdefault(template.kind, []).append(template)
        for templates in by_kind.values():
            yield from self._distinct(templates, count)
        yield from self._long(count)

    def _distinct(self, templates: list[Template], count: int) -> Iterator[Pair]:
        seen: set[tuple[str, str]] = set()
        for number in range(count * _TRIES):
            frame = FRAMES[number // (2 * count) % len(FRAMES)]
            pair = self._filled(templates[number % len(templates)], frame)
            if pair.a != pair.b and (pair.a, pair.b) not in seen:
                seen.add((pair.a, pair.b))
                yield pair
            if len(seen) == count:
                return

    def _filled(self, template: Template, frame: str) -> Pair:
        values = self._values(template.a + template.b, {})
        a, b = (frame.replace("{}", _fill(text, values)) for text in template[:2])
        return Pair(a, b, template.same, template.kind)

    def _values(self, text: str, given: Mapping[str, str]) -> dict[str, str]:
        """A value for each slot of a text; slots of one list have different ones."""
        values = dict(given)
        for name, _, number in _SLOT.findall(text):
            if f"{name}{number}" not in values:
                taken = {value for slot, value in values.items() if slot.rstrip("0123456789") == name}
                values[f"{name}{number}"] = self._draw.choice(
                    [v for v in self._lists[name] if v not in taken]
                )
        return values

    def _long(self, count: int) -> Iterator[Pair]:
        sentences = [line for line in (FOLDER / "long.txt").read_text("utf-8").split("\n") if "{" in line]
        num_found = 0
        while num_found < count:
            text = " ".join(self._draw.sample(sentences, NUM_SENTENCES)) + " What should I do first?"
            slots = list(dict.fromkeys(f"{name}{number}" for name, _, number in _SLOT.findall(text)))
            one = self._values(text, {})
            changed = self._draw.choice(slots)
            other = self._values(text, {slot: value for slot, value in one.items() if slot != changed})
            if other != one:
                num_found += 1
                yield Pair(_fill(text, one), _fill(text, other), False, LONG)


def _fill(text: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        found = values[f"{match[1]}{match[3]}"]
        return found.lower() if match[2] else found

    return _SLOT.sub(value, text).replace("\\n", "\n")
