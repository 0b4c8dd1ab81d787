"""What a worker knows of its upstreams, whichever version of the policies names them."""

from __future__ import annotations

from collections.abc import Callable

from gateway.fleet.board import Board
from gateway.fleet.budget import RetryBudget
from gateway.fleet.health import Health, Trouble
from gateway.fleet.retries import FailureClass
from gateway.fleet.stays import Stays


class FleetMemory:
    """By name, so that a reload of the policies forgets nothing."""

    def __init__(self, board: Board | None = None) -> None:
        """`board`: what all workers know; None: this one is alone."""
        self._board = board
        self.on_out: Callable[[str, Trouble], None] = lambda model, trouble: None
        self.on_failure: Callable[[str, FailureClass], None] = lambda model, kind: None
        self._budgets: dict[str, RetryBudget] = {}
        self._stays: dict[str, Stays] = {}
        self._healths: dict[tuple[str, str], Health] = {}

    def budget(self, model: str) -> RetryBudget:
        """The budget of a model's retries."""
        return self._budgets.setdefault(model, RetryBudget())

    def stays(self, model: str) -> Stays:
        """Where a model's conversations have been answered."""
        return self._stays.setdefault(model, Stays())

    def health(self, model: str, place: str) -> Health:
        """The health of a model's target; `place`: its URL and its key's name, which a reload may change."""
        found = self._healths.get((model, place))
        if found is None:
            name = f"{model!r} at {place}"
            slot = None if self._board is None else self._board.slot(name)
            found = self._healths[model, place] = Health(name, slot=slot)
            found.on_out = lambda trouble: self.on_out(model, trouble)
            found.on_failure = lambda kind: self.on_failure(model, kind)
        return found
