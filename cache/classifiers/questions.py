"""Questions of our own, from templates, whose right answer does or does not change with time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from cache.verify.words import read_sections

_PARTS = read_sections(Path(__file__).with_suffix(".txt"))
SLOTS = {name: values.split("|") for name, _, values in (line.partition("=") for line in _PARTS["slots"])}


class _Filler(dict[str, str]):
    """A random value for each slot."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def __missing__(self, name: str) -> str:
        return self._random.choice(SLOTS[name])


def time_questions(random: Random, per_template: int = 12) -> Iterator[tuple[str, bool]]:
    """(question, whether its answer changes with time); case and question marks vary."""
    for part, changes in (("changes", True), ("stays", False)):
        for template in _PARTS[part]:
            for _ in range(per_template if "{" in template else 4):
                text = template.format_map(_Filler(random))
                roll = random.random()
                text = text[0].upper() + text[1:] if roll < 0.4 else text
                yield f"{text}?" if 0.2 < roll < 0.7 else text, changes
