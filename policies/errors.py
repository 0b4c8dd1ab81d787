"""The policies' errors.

PolicyError    an invalid policy folder: all of its problems, each with file and line
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A location in a policy file; line 0 means the whole file, column 0 the whole line."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join([self.file, *(str(number) for number in (self.line, self.column) if number)])


@dataclass(frozen=True, slots=True)
class Problem:
    """One validation error: where, what is wrong and how to fix it."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class PolicyError(Exception):
    """An invalid policy folder; `str()` gives one line per problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def file(self) -> str:
        """File of the first problem."""
        return self.problems[0].place.file

    @property
    def line(self) -> int:
        """Line of the first problem, from 1; 0 if it concerns the whole file."""
        return self.problems[0].place.line
