"""Whether a tenant may use a model now, by the tiers and limits of one version of the policies."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from gateway.accounting.counters import DAY_S, MINUTE_S
from gateway.accounting.ledger import Ledger
from gateway.accounting.reservations import NOTHING, Cost
from gateway.errors import Forbidden, InvalidRequest, RateLimited
from policies.document import Policies
from policies.tenants import Limits, Tenant, rules_of

RETRY_S = 1
"""`retry-after` of a tenant with too many requests at the same time."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What admit and reserve have counted for an exchange."""

    num_answers: int = 0  # that run
    counts_tokens: bool = False  # the tenant has a limit of tokens
    reserved: Cost = NOTHING


class Limited(NamedTuple):
    """A limit of what requests cost."""

    name: str
    unit: str
    window_s: int
    code: str = "rate_limit_exceeded"

    def share(self, asked: float, left: float, held: float, limit: float, is_bounded: bool) -> float:
        """What to set aside of what is left beside what is held. Raises RateLimited."""
        if asked <= left - held:
            return asked
        if is_bounded and asked > limit:
            raise RateLimited(
                f"This request may cost {asked:.6g} {self.unit}, more than the limit of {self.name}. Send a "
                "smaller max_tokens, n or prompt.",
                code=self.code,
            )
        if not is_bounded and not held and left > 0:
            return left
        is_held_up = left > 0 if not is_bounded else asked <= left
        raise _limited(self.name, RETRY_S if is_held_up else _rest_of(self.window_s), code=self.code)


class Admission:
    """What runs is counted in the ledger, which all versions of the policies share: so are the limits."""

    def __init__(self, policies: Policies, ledger: Ledger) -> None:
        self._policies = policies
        self._ledger = ledger
        self._rules: dict[str, Tenant] = {}  # of tenants that have asked

    def enter(self, tenant: str, model: str | None = None, num_answers: int = 1) -> dict[str, str]:
        """Count a request as running, once for each of its answers; returns headers that say what is left.

        Raises RateLimited, Forbidden for a model that is not the tenant's, and InvalidRequest for more
        answers than may ever run.
        """
        rules = self._rules_of(tenant)
        if model is not None and rules.models is not None and model not in rules.models:
            may = ", ".join(rules.models) or "none"
            raise Forbidden(
                f"The model {model[:128]!r} is not for {tenant!r}, which may ask for: {may}.",
                param="model",
                code="model_not_allowed",
            )
        limits = rules.limits
        headers = self._check(tenant, limits, num_answers)
        if limits.requests_per_minute is not None:
            self._ledger.use(tenant, requests=1)
        self._ledger.running[tenant] += num_answers
        return headers

    def leave(self, tenant: str, num_tokens: int = 0, num_answers: int = 1) -> None:
        """Count a request that has entered as ended, and its tokens where they are not accounted for."""
        if num_tokens and self.counts_tokens(tenant):
            self._ledger.use(tenant, tokens=num_tokens)
        running = self._ledger.running
        running[tenant] -= num_answers
        if not running[tenant]:
            del running[tenant]

    def counts_tokens(self, tenant: str) -> bool:
        """Whether the tenant has a limit of tokens."""
        return self._rules_of(tenant).limits.tokens_per_minute is not None

    def limits_cost(self, tenant: str) -> bool:
        """Whether the tenant has a limit of tokens or USD."""
        limits = self._rules_of(tenant).limits
        return limits.tokens_per_minute is not None or limits.usd_per_day is not None

    def reserve(self, tenant: str, highest: Cost, *, is_bounded: bool) -> Cost:
        """Set aside what a request may cost at most, and return it, for `release`.

        `is_bounded`: the request says how long its answer may be. Else, with nothing beside it, it gets
        what is left. Raises RateLimited where there is too little.
        """
        limits, ledger = self._rules_of(tenant).limits, self._ledger
        held = ledger.reservations.of(tenant)
        tokens = usd = 0.0
        if limits.tokens_per_minute is not None:
            what = Limited(f"{limits.tokens_per_minute} tokens per minute", "tokens", MINUTE_S)
            left = limits.tokens_per_minute - ledger.recent(tenant, "tokens")
            tokens = what.share(highest.tokens, left, held.tokens, limits.tokens_per_minute, is_bounded)
        if limits.usd_per_day is not None:
            what = Limited(f"{limits.usd_per_day:g} USD per day", "USD", DAY_S, "budget_exceeded")
            left_usd = limits.usd_per_day - ledger.tenant_usd(tenant)
            usd = what.share(highest.usd, left_usd, held.usd, limits.usd_per_day, is_bounded)
        cost = Cost(tokens, usd)
        ledger.reservations.hold(tenant, cost)
        return cost

    def release(self, tenant: str, reserved: Cost) -> None:
        """Give back what was set aside, once the ledger has what the request has cost."""
        self._ledger.reservations.release(tenant, reserved)

    def _rules_of(self, tenant: str) -> Tenant:
        rules = self._rules.get(tenant)
        if rules is None:
            rules = self._rules[tenant] = rules_of(tenant, self._policies.tenants, self._policies.tiers)
        return rules

    def _check(self, tenant: str, limits: Limits, num_answers: int) -> dict[str, str]:
        told: dict[str, str] = {}
        most = limits.concurrent_requests
        if most is not None and num_answers > most:
            raise InvalidRequest(
                f"'n' asks for {num_answers} answers at the same time, counting every prompt; the limit is "
                f"{most}. Send a smaller n, or fewer prompts.",
                param="n",
                code="invalid_value",
            )
        if most is not None and self._ledger.running[tenant] + num_answers > most:
            raise _limited(f"{most} requests at the same time", RETRY_S)
        budget = limits.usd_per_day
        if budget is not None and self._ledger.tenant_usd(tenant) >= budget:
            raise _limited(f"{budget:g} USD per day", _rest_of(DAY_S), code="budget_exceeded")
        for kind, limit in (("requests", limits.requests_per_minute), ("tokens", limits.tokens_per_minute)):
            if limit is None:
                continue
            left = limit - self._ledger.recent(tenant, kind)
            free = left - self._ledger.reservations.of(tenant).tokens if kind == "tokens" else left - 1
            headers = {
                f"x-ratelimit-limit-{kind}": str(limit),
                f"x-ratelimit-remaining-{kind}": str(max(0, int(free))),
                f"x-ratelimit-reset-{kind}": f"{_rest_of(MINUTE_S)}s",
            }
            if left < 1:
                raise _limited(f"{limit} {kind} per minute", _rest_of(MINUTE_S), headers)
            told |= headers
        return told


def _rest_of(window_s: int) -> int:
    return window_s - int(time.time()) % window_s


def _limited(
    limit: str, retry_s: int, headers: dict[str, str] | None = None, *, code: str = "rate_limit_exceeded"
) -> RateLimited:
    message = f"The limit of {limit} is reached. Try again in {retry_s} s."
    return RateLimited(message, code=code, headers={"retry-after": str(retry_s), **(headers or {})})
