"""The policies' errors.

PolicyError    a folder that cannot be used: every problem in it, each with file and line
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A spot in a file; line 0 stands for the file as a whole."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what to do about it."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class PolicyError(Exception):
    """A policy folder that cannot be used. `str()` gives one line per problem, `problems` the parts."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def file(self) -> str:
        """File of the first problem."""
        return self.problems[0].place.file

    @property
    def line(self) -> int:
        """Line of the first problem, from 1; 0 when it concerns the whole file."""
        return self.problems[0].place.line
