"""How a request may end while processes are killed. All ends but `wrong` are honest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["right", "error", "cut", "refused", "wrong"]
"""`right`: the expected answer. `error`: an error that names itself, in the API's shape. `cut`: the
connection broke, which no client takes for an end. `refused`: nothing listened. `wrong`: the rest."""
OUTCOMES: tuple[Outcome, ...] = ("right", "error", "cut", "refused", "wrong")


class HonestError(Exception):
    """The server said that it could not answer now."""


class Wrong(Exception):
    """Another answer than the expected one, a silent end, or none in time."""


@dataclass(frozen=True)
class Sent:
    """One request; `problem` is empty unless it ended wrongly."""

    kind: str
    started_s: float
    total_s: float
    outcome: Outcome
    problem: str = ""


def expect(holds: object, found: object) -> None:
    """Raise Wrong with what was found unless `holds`."""
    if not holds:
        raise Wrong(str(found))
