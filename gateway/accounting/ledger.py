"""What requests have cost, by tenant and by model, each day (UTC), and the accounts of limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.accounting.accounts import Accounts, MemoryAccounts
from gateway.accounting.counters import DAY_S, KEPT_WINDOWS, MINUTE_S, Counters
from gateway.answer import Usage
from policies.prices import Price


class Ledger:
    """Reads and writes the counters of spending and of use. It outlives every version of the policies."""

    def __init__(self, counters: Counters | None = None, accounts: Accounts | None = None) -> None:
        """`accounts` of limits; None: this worker is alone."""
        self.counters = counters or Counters()
        self.accounts = accounts or MemoryAccounts(self.counters)
        self.on_refusal: Callable[[str, str], None] = lambda tenant, limit: None

    def spend(self, tenant: str, model: str, usd: float) -> None:
        """A call of a model for a tenant has cost this much; "" for none, as a shadow request's."""
        if usd and tenant:
            self.counters.add(f"usd:tenant:{tenant}", usd, DAY_S)
        if usd:
            self.counters.add(f"usd:model:{model}", usd, DAY_S)

    def tenant_usd(self, tenant: str) -> float:
        """Spent today."""
        return self.counters.total(f"usd:tenant:{tenant}", DAY_S)

    def model_usd(self, model: str) -> float:
        """Spent today."""
        return self.counters.total(f"usd:model:{model}", DAY_S)

    def models_usd(self, models: Iterable[str]) -> float:
        """Spent today, together."""
        return sum(map(self.model_usd, models))

    def pace(self, place: str, left_usd: float) -> float:
        """USD per request that are left for those to come today, at the rate of the last minutes.

        `place`: of a rule in the policies. Counts this request as one of its.
        """
        name, now_s = f"asked:{place}", self.counters.now_s()
        self.counters.add(name, 1, MINUTE_S)
        seconds = (KEPT_WINDOWS - 1) * MINUTE_S + now_s % MINUTE_S
        per_second = self.counters.total(name, MINUTE_S, KEPT_WINDOWS) / seconds
        return max(0.0, left_usd) / max(1.0, per_second * (DAY_S - now_s % DAY_S))

    def judge(self, place: str, model: str, score: float) -> None:
        """An answer of a model that was chosen there has been judged, from 0 to 1."""
        for name, amount in (("good", score), ("bad", 1 - score)):
            if amount:
                self.counters.add(f"{name}:{place}:{model}", amount, DAY_S)

    def judged(self, place: str, model: str) -> tuple[float, float]:
        """How much good and bad was said in the last week."""
        what, total = f"{place}:{model}", self.counters.total
        return total(f"good:{what}", DAY_S, KEPT_WINDOWS - 1), total(f"bad:{what}", DAY_S, KEPT_WINDOWS - 1)


def cost_usd(price: Price | None, usage: Usage, *, is_batch: bool = False) -> float:
    """The cost of one model call, or of one for a batch; 0.0 for a model without a price, and for no call."""
    if price is None or not usage.prompt_tokens + usage.completion_tokens:
        return 0.0
    usd = price.tokens_usd(
        usage.prompt_tokens,
        usage.completion_tokens,
        cached=usage.cached_tokens,
        written=usage.cache_write_tokens,
        reasoning=usage.reasoning_tokens,
    )
    if is_batch:
        usd *= price.batch_factor
    return usd + price.request_usd + usage.machine_seconds * price.machine_second_usd


def highest_usd(price: Price | None, usage: Usage, *, is_batch: bool = False) -> float:
    """The most that a call with these tokens and machine seconds can cost, whatever its tokens will be."""
    if price is None:
        return 0.0
    usd = price.highest_usd(usage.prompt_tokens, usage.completion_tokens)
    if is_batch:
        usd *= price.batch_factor
    return usd + price.request_usd + usage.machine_seconds * price.machine_second_usd
