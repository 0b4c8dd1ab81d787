"""Reversible placeholders: `[EMAIL_1]` for an address, the same for the same value in one conversation.

A conversation is sent again with each turn; values are numbered in the order in which they appear, so a value
keeps its placeholder from turn to turn.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from guardrails.checks.personal_data.names import KINDS as NAME_KINDS
from guardrails.checks.personal_data.names import Finder, finder_of
from guardrails.checks.personal_data.patterns import KINDS as PATTERN_KINDS
from guardrails.checks.personal_data.span import Span
from guardrails.scan.scanner import Blocked, Scanner, scan
from guardrails.text.json_text import InJson
from policies.guardrails import PersonalDataAction as Action
from policies.guardrails import PersonalDataKind

__all__ = ["Blocked", "Masking"]

_KINDS = "|".join(kind.upper() for kind in (*PATTERN_KINDS, *NAME_KINDS))
_PLACEHOLDER = re.compile(rf"\[(?:{_KINDS})_[0-9]{{1,4}}\]")
_OPEN_PLACEHOLDER = re.compile(r"\[[A-Z_]{0,20}[0-9]{0,4}")
_MAX_PLACEHOLDER_CHARS = 26


class Masking:
    """The values of one conversation and their placeholders."""

    def __init__(self, kinds: Collection[PersonalDataKind], action: Action) -> None:
        """`mask`: placeholders, restored in the answer; `redact`: `[EMAIL]`; `flag`: only counted."""
        self.found: Counter[str] = Counter()  # by kind
        self._action = action
        self._kinds = kinds
        self._finder = finder_of(kinds, _search_placeholder)
        self._request_rule = _Rule(self._finder, self._replace)
        self._placeholders: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._num_values: Counter[str] = Counter()  # by kind

    @property
    def num_noted(self) -> int:
        """How many values it has found, and placeholders that texts had already."""
        return self.found.total() + len(self._placeholders)

    def mask(self, text: str, *, in_json: bool = False) -> str:
        """The text to send to a model. Raises Blocked."""
        return scan(InJson(self._request_rule) if in_json else self._request_rule, text)

    def restorer(self, *, screens_answers: bool, in_json: bool = False) -> Scanner:
        """Puts the values back into an answer in pieces; it may raise Blocked while it is fed.

        `screens_answers`: the action applies to what the model wrote itself, too. `in_json`: it is
        the text of a JSON document, as a tool call's arguments are; values are escaped as JSON strings are.
        """
        finder = self._finder if screens_answers else finder_of((), _search_placeholder)

        def restore(kind: str, value: str) -> str:
            restored = self._restore(kind, value)
            return (
                json.dumps(restored, ensure_ascii=False)[1:-1] if in_json and restored != value else restored
            )

        rule = _Rule(finder, restore)
        return Scanner(InJson(rule) if in_json else rule)

    def _replace(self, kind: str, value: str) -> str:
        if kind == _PLACEHOLDER_KIND:  # the caller's own text, which the answer must give back
            return self._placeholder(value[1:].rpartition("_")[0], value) if self._action == "mask" else value
        self.found[kind] += 1
        if self._action == "block":
            raise Blocked(kind)
        if self._action == "flag":
            return value
        return self._placeholder(kind.upper(), value) if self._action == "mask" else f"[{kind.upper()}]"

    def _placeholder(self, name: str, value: str) -> str:
        found = self._placeholders.get(value)
        if found is None:
            self._num_values[name] += 1
            found = self._placeholders[value] = f"[{name}_{self._num_values[name]}]"
            self._values[found] = value
        return found

    def _restore(self, kind: str, value: str) -> str:
        if kind == _PLACEHOLDER_KIND:
            return self._values.get(value, value)
        if value in self._placeholders:  # the caller's own
            return value
        self.found[kind] += 1
        if self._action == "block":
            raise Blocked(kind)
        return value if self._action == "flag" else f"[{kind.upper()}]"


class _Rule:
    """What a finder finds and its replacements."""

    def __init__(self, finder: Finder, replace: Callable[[str, str], str]) -> None:
        self._finder = finder
        self._replace = replace

    def open_from(self, text: str, start: int) -> int:
        """A placeholder may be open, too."""
        bracket = text.rfind("[", max(start, len(text) - _MAX_PLACEHOLDER_CHARS))
        is_open = bracket >= 0 and _OPEN_PLACEHOLDER.fullmatch(text, bracket) is not None
        return min(self._finder.open_from(text, start), bracket if is_open else len(text))

    def replacements(self, text: str, start: int, settled: int) -> Iterator[tuple[int, int, str]]:
        """The placeholder of each span that is found."""
        for span in self._finder.spans(text, start, settled):
            if span.start >= settled:
                return
            try:
                replacement = self._replace(span.kind, text[span.start : span.end])
            except Blocked as blocked:
                raise Blocked(blocked.kind, span.start) from None
            yield span.start, span.end, replacement


_PLACEHOLDER_KIND = "placeholder"


def _search_placeholder(text: str, start: int, kinds: Collection[str]) -> Span | None:
    match = _PLACEHOLDER.search(text, start) if "[" in text else None
    return None if match is None else Span(match.start(), match.end(), _PLACEHOLDER_KIND)
