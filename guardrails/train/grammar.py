"""Texts from templates: `{slot}` is one of a slot's values, `[[a|b]]` one of these, `\\n` a new line.

A slot in STICKY has one value in a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import regex

_SLOT = regex.compile(r"\{([a-z_]+)\}")
_CHOICE = regex.compile(r"\[\[([^\[\]]*)\]\]")
STICKY = ("persona", "company")
MAX_DEPTH = 8
TRIES = 8
"""For each text, until one is new."""


class Grammar:
    """Files of `name = value | value` lines, which define slots, and of `[section]`s of templates."""

    def __init__(self, paths: list[Path]) -> None:
        self.slots: dict[str, list[str]] = {}
        self.sections: dict[str, list[str]] = {}
        for path in paths:
            self._read(path.read_text("utf-8"))
        for name in self.sections:  # a section may stand in a template, too
            self.slots.setdefault(name, self.sections[name])

    def _read(self, text: str) -> None:
        section = ""
        for line in text.split("\n"):
            if line.startswith("[") and line.endswith("]") and not line.startswith("[["):
                section = line[1:-1]
                self.sections.setdefault(section, [])
            elif regex.match(r"[a-z_]+ = ", line):
                name, _, values = line.partition(" = ")
                self.slots.setdefault(name, []).extend(values.split(" | "))
            elif line and not line.startswith("#"):
                self.sections[section].append(line)

    def expand(self, draw: Random, template: str) -> str:
        """One text of a template."""
        bound = {name: draw.choice(self.slots[name]) for name in STICKY if name in self.slots}
        return self._expand(draw, template, bound, 0).replace("\\n", "\n")

    def _expand(self, draw: Random, text: str, bound: Mapping[str, str], depth: int) -> str:
        assert depth <= MAX_DEPTH, text
        while (choice := _CHOICE.search(text)) is not None:
            text = text[: choice.start()] + draw.choice(choice[1].split("|")) + text[choice.end() :]

        def value(match: regex.Match[str]) -> str:
            found = bound.get(match[1]) or draw.choice(self.slots[match[1]])
            return self._expand(draw, found, bound, depth + 1)

        return _SLOT.sub(value, text)

    def texts(self, draw: Random, section: str, count: int) -> Iterator[str]:
        """Distinct texts, from all templates of a section alike."""
        return self.texts_of(draw, self.sections[section], count)

    def texts_of(self, draw: Random, templates: Sequence[str], count: int) -> Iterator[str]:
        """Distinct texts, from all these templates alike."""
        seen: set[str] = set()
        for number in range(count):
            for _ in range(TRIES):
                text = self.expand(draw, templates[number % len(templates)])
                if text not in seen:
                    seen.add(text)
                    yield text
                    break
