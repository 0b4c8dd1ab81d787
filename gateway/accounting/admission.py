"""Whether a tenant may use a model now, by the tiers and limits of one version of the policies."""

from __future__ import annotations

import time

from gateway.accounting.counters import DAY_S, MINUTE_S
from gateway.accounting.ledger import Ledger
from gateway.errors import Forbidden, InvalidRequest, RateLimited
from policies.document import Policies
from policies.tenants import Limits, Tenant, rules_of

RETRY_S = 1
"""`retry-after` of a tenant with too many requests at the same time."""


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
            headers = {
                f"x-ratelimit-limit-{kind}": str(limit),
                f"x-ratelimit-remaining-{kind}": str(max(0, int(left - (kind == "requests")))),
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
