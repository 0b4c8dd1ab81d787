"""From a regular expression, the one that matches every beginning of its matches, the empty one included.

`ab` becomes `(?:a(?:b)?)?`. A stream is held back from where that reaches the end of what has come.
"""

from __future__ import annotations

from dataclasses import dataclass

import regex

MAX_DEPTH = 200
_ATOM = regex.compile(
    r"\\x\{[^}]*\}|\\[pP]\{[^}]*\}|\\[pP].|\\x..|\\."
    r"|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|[^\\\[()|]",
    regex.DOTALL,
)
_GROUP = regex.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?")
_FLAGS = regex.compile(r"\(\?[a-zA-Z-]+\)")
_REPEAT = regex.compile(r"(?P<range>[*+?]|\{(?P<least>\d+)(?P<comma>,)?(?P<most>\d*)\})\??")
_ANCHORS = ("^", "$", r"\A", r"\z")


class UnsupportedPattern(Exception):
    """An expression that cannot be used on streams; the message says why."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A part of a sequence: its text, and that which matches every beginning of it."""

    text: str
    beginning: str
    is_flags: bool = False
    is_atom: bool = False


def beginnings(pattern: str) -> str:
    """Raises UnsupportedPattern for what has no place in a stream: anchors, and too deep nesting."""
    parser = _Parser(pattern)
    found = parser.alternatives(0)
    if parser.at < len(pattern):
        raise UnsupportedPattern("unexpected ')'")
    return found


class _Parser:
    """Reads sequences, alternatives, groups and repetitions of RE2's syntax; RE2 checks the rest."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    def alternatives(self, depth: int) -> str:
        """The beginnings of `a|b|c`, up to a closing parenthesis or the end."""
        if depth > MAX_DEPTH:
            raise UnsupportedPattern(f"its groups are nested more than {MAX_DEPTH} deep")
        found = [self._sequence(depth)]
        while self._pattern.startswith("|", self.at):
            self.at += 1
            found.append(self._sequence(depth))
        return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"

    def _sequence(self, depth: int) -> str:
        items = []
        while self.at < len(self._pattern) and self._pattern[self.at] not in "|)":
            items.append(self._repeated(self._item(depth)))
        found = ""
        for item in reversed(items):
            if item.is_flags:
                found = item.text + found
            elif not found:
                found = item.beginning
            elif item.is_atom:
                found = f"(?:{item.text}{found})?"
            else:
                found = f"(?:{item.text}{found}|{item.beginning})"
        return found

    def _item(self, depth: int) -> _Item:
        flags = _FLAGS.match(self._pattern, self.at)
        if flags is not None:
            if "m" in flags.group():
                raise UnsupportedPattern("the flag 'm' is for anchors, which have no place in a stream")
            self.at = flags.end()
            return _Item(flags.group(), "", is_flags=True)
        if self._pattern[self.at] == "(":
            return self._group(depth)
        atom = _ATOM.match(self._pattern, self.at)
        if atom is None:
            raise UnsupportedPattern(f"it is not valid from character {self.at + 1} on")
        self.at = atom.end()
        text = atom.group()
        if text in _ANCHORS:
            raise UnsupportedPattern(f"the anchor {text!r} has no place in a stream: use \\b or leave it out")
        if text == r"\Q":
            raise UnsupportedPattern("it has \\Q: escape each character instead")
        return _Item(text, f"(?:{text})?", is_atom=True)

    def _group(self, depth: int) -> _Item:
        opening = _GROUP.match(self._pattern, self.at)
        assert opening is not None
        start = self.at
        self.at = opening.end()
        beginning = self.alternatives(depth + 1)
        if not self._pattern.startswith(")", self.at):
            raise UnsupportedPattern("missing ')'")
        self.at += 1
        prefix = opening.group() if opening.group().endswith(":") else "(?:"
        text = prefix + self._pattern[start + len(opening.group()) : self.at]
        return _Item(text, f"{prefix}{beginning})")

    def _repeated(self, item: _Item) -> _Item:
        repeat = _REPEAT.match(self._pattern, self.at)
        if repeat is None or item.is_flags:
            return item
        self.at = repeat.end()
        most = {"*": "", "+": "", "?": "1"}.get(repeat["range"])
        if most is None:
            most = repeat["most"] if repeat["comma"] else repeat["least"]
        text = item.text + repeat.group()
        if most == "0":
            return _Item(text, "")
        if item.is_atom:
            return _Item(text, item.text + (f"{{0,{most}}}" if most else "*"))
        before = "*" if not most else f"{{0,{int(most) - 1}}}"
        return _Item(text, f"(?:{item.text}{before}{item.beginning})")
