"""What requests may still cost at most, set aside before they run: a limit holds for any number at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple


class Cost(NamedTuple):
    """Tokens of prompts and answers, and their price."""

    tokens: float = 0.0
    usd: float = 0.0

    def __bool__(self) -> bool:
        return self.tokens > 0 or self.usd > 0


NOTHING = Cost()


class Reservations:
    """The sums of one gateway worker, by tenant, in every version of the policies."""

    def __init__(self) -> None:
        self._held: dict[str, list[Cost]] = defaultdict(list)

    def hold(self, tenant: str, cost: Cost) -> None:
        """Set a cost aside."""
        if cost:
            self._held[tenant].append(cost)

    def release(self, tenant: str, cost: Cost) -> None:
        """Give a cost back that was set aside: what it has really been is in the ledger."""
        if cost:
            self._held[tenant].remove(cost)
            if not self._held[tenant]:
                del self._held[tenant]

    def of(self, tenant: str) -> Cost:
        """All that is set aside for a tenant; exactly 0 when nothing runs."""
        held = self._held.get(tenant, ())
        return Cost(sum(each.tokens for each in held), sum(each.usd for each in held))
