"""Graders of answers to own questions. A reason says in what an answer is wrong, without quoting it."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import re2

GraderName = Literal["exact", "regex", "json", "numeric", "judge"]
GRADERS: tuple[GraderName, ...] = ("exact", "regex", "json", "numeric", "judge")
_FENCED = re.compile(r"\A```[a-zA-Z0-9]*\s*\n(.*?)\n?```\Z", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader makes of an answer; `reason` is "" where it is right."""

    is_right: bool
    reason: str = ""


RIGHT = Grade(is_right=True)


class Grader(Protocol):
    """Compares an answer with what was expected."""

    def grade(self, text: str) -> Grade:
        """Judge the text of an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Rubric:
    """How a judge shall grade the answers to one question."""

    question: object  # the prompt, or the messages
    reference: Any = None
    rubric: str = ""


@dataclass(frozen=True, slots=True)
class Exact:
    """The answer is one of these texts; white space around it does not count."""

    expected: Sequence[str]
    ignore_case: bool = False

    def grade(self, text: str) -> Grade:
        """Compare the whole answer."""
        if not text.strip():
            return Grade(is_right=False, reason="empty")
        found = self._plain(text)
        if any(found == self._plain(each) for each in self.expected):
            return RIGHT
        if any(self._plain(each) in found for each in self.expected):
            return Grade(is_right=False, reason="more than the expected text")
        return Grade(is_right=False, reason="another text")

    def _plain(self, text: str) -> str:
        plain = unicodedata.normalize("NFC", text).strip()
        return plain.casefold() if self.ignore_case else plain


class Regex:
    """An RE2 expression matches somewhere in the answer."""

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        """Raises ValueError for an expression that is none."""
        options = re2.Options()
        options.log_errors = False  # the expression may hold what the prompt does
        options.case_sensitive = not ignore_case
        try:
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            raise ValueError(f"no RE2 expression: {_words(error)}") from None

    def grade(self, text: str) -> Grade:
        """Search the answer."""
        is_found = self._compiled.search(text.encode("utf-8", "replace").decode()) is not None
        return RIGHT if is_found else Grade(is_right=False, reason="no match")


@dataclass(frozen=True, slots=True)
class Json:
    """The answer is this JSON value, perhaps in a code fence; the order of keys does not count."""

    expected: Any
    subset: bool = False  # objects may have more keys

    def grade(self, text: str) -> Grade:
        """Parse the whole answer and compare."""
        fenced = _FENCED.match(text.strip())
        try:
            found = json.loads(fenced[1] if fenced else text)
        except (ValueError, RecursionError):
            return Grade(is_right=False, reason="no JSON")
        place = self._difference(found, self.expected, "$")
        return Grade(is_right=False, reason=f"differs at {place}") if place else RIGHT

    def _difference(self, found: object, expected: object, place: str) -> str:
        """The path of the first difference, "" for none."""
        if isinstance(expected, dict) and isinstance(found, dict):
            for key, value in expected.items():
                if key not in found:
                    return f"{place}.{key}, which is missing"
                if where := self._difference(found[key], value, f"{place}.{key}"):
                    return where
            return "" if self.subset or found.keys() == expected.keys() else f"{place}, which has more keys"
        if isinstance(expected, list) and isinstance(found, list):
            if len(found) != len(expected):
                return f"{place}, which has another length"
            pairs = enumerate(zip(found, expected, strict=True))
            return next(filter(None, (self._difference(a, b, f"{place}[{n}]") for n, (a, b) in pairs)), "")
        is_equal = found == expected and isinstance(found, bool) == isinstance(expected, bool)
        return "" if is_equal else place


@dataclass(frozen=True, slots=True)
class Numeric:
    """The last number of the answer is the expected one, within a tolerance."""

    expected: float
    tolerance: float = 0.0
    relative_tolerance: float = 0.0

    def grade(self, text: str) -> Grade:
        """Read the last number, with or without thousands separators."""
        numbers = _NUMBER.findall(text)
        if not numbers:
            return Grade(is_right=False, reason="no number")
        found = float(numbers[-1].replace(",", "").replace("−", "-"))
        if not math.isfinite(found):
            return Grade(is_right=False, reason="another number")
        allowed = max(self.tolerance, self.relative_tolerance * abs(self.expected), 1e-9 * abs(self.expected))
        return (
            RIGHT if abs(found - self.expected) <= allowed else Grade(is_right=False, reason="another number")
        )


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return (said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)).partition(":")[0]
