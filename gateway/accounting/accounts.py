"""What requests have used and set aside of each limit, in the memory of one gateway worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple, Protocol

from gateway.accounting.counters import MINUTE_S, Counters
from gateway.accounting.lines import Line, State, Verdict, decide


class Settled(NamedTuple):
    """The end of what a request has set aside of a line."""

    line: Line
    held: int
    used: int


class Accounts(Protocol):
    """Asked for all lines of a request at once: it gets what it asks of each, or nothing of any."""

    fault: str
    """Why limits are not shared now; "" while they are."""

    async def reserve(self, lines: Sequence[Line]) -> Verdict:
        """Count and set aside. Raises Unavailable where the policies refuse what cannot be counted."""
        ...

    def settle(self, ended: Sequence[Settled]) -> None:
        """Give back what was set aside, and count what was used; without waiting."""
        ...

    def start(self) -> None:
        """Begin to share, inside the event loop."""
        ...

    async def close(self) -> None:
        """Tell what has not been told."""
        ...


class MemoryAccounts:
    """Implements Accounts for a worker that is alone; the counters keep what was used over a restart."""

    fault = ""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.held: Counter[str] = Counter()  # by line

    async def reserve(self, lines: Sequence[Line]) -> Verdict:
        """Count and set aside."""
        verdict = decide(lines, [State(self.used(line), self.held[line.name]) for line in lines])
        self.grant(lines, verdict.granted)
        return verdict

    def used(self, line: Line) -> int:
        """What was used in the line's window."""
        if line.window_s == MINUTE_S:
            return ceil(self.counters.recent(line.name, MINUTE_S))
        return int(self.counters.total(line.name, line.window_s)) if line.window_s else 0

    def grant(self, lines: Sequence[Line], granted: Sequence[int]) -> None:
        """Count and set aside what was granted."""
        for line, amount in zip(lines, granted, strict=False):
            if amount and line.is_counted_at_once:
                self.counters.add(line.name, amount, line.window_s)
            elif amount:
                self.held[line.name] += amount

    def settle(self, ended: Sequence[Settled]) -> None:
        """Give back what was set aside, and count what was used."""
        self.release(ended)
        for line, _, used in ended:
            if used and line.window_s:
                self.counters.add(line.name, used, line.window_s)

    def release(self, ended: Sequence[Settled]) -> None:
        """Give back what was set aside."""
        for line, amount, _ in ended:
            self.held[line.name] -= amount
            if self.held[line.name] <= 0:
                del self.held[line.name]

    def start(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing: the counters are closed by their owner."""
