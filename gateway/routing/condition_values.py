"""The values of the variables in conditions, for one request; only those that are asked for are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from gateway.accounting.ledger import Ledger
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelTable
from gateway.requests.token_estimate import estimate_prompt
from policies.document import Policies
from policies.tenants import rules_of
from policies.variables import MAPS

_JSON_FORMATS = ("json_object", "json_schema")


def utc_now() -> datetime:
    """The time that rules see."""
    return datetime.now(UTC)


class Facts:
    """Reads facts from exchanges under one version of the policies."""

    def __init__(
        self,
        models: ModelTable,
        policies: Policies,
        clock: Callable[[], datetime] = utc_now,
        ledger: Ledger | None = None,
    ) -> None:
        self._models = models
        self._policies = policies
        self._clock = clock
        self._ledger = ledger or Ledger()

    def of(
        self, exchange: Exchange, names: Iterable[str], keys: Iterable[tuple[str, str]]
    ) -> dict[str, object]:
        """The value of each name; for a map, those of its `keys`."""
        facts: dict[str, Any] = {name: {} if name in MAPS else _READERS[name](exchange) for name in names}
        if "tenant.tier" in facts:
            tenant, policies = exchange.principal.tenant, self._policies
            facts["tenant.tier"] = rules_of(tenant, policies.tenants, policies.tiers).tier or "default"
        if "tenant.spent_usd" in facts:
            facts["tenant.spent_usd"] = self._ledger.tenant_usd(exchange.principal.tenant)
        if "time" in facts:
            facts["time"] = self._clock()
        for name, key in keys:
            facts[name][key] = self._keyed(exchange, name, key)
        return facts

    def _keyed(self, exchange: Exchange, name: str, key: str) -> object:
        if name == "headers":
            return exchange.asked.read_header(key)
        if name == "request.metadata":
            return (_field(exchange, "metadata") or {}).get(key, "")
        if name == "live.spent_usd":
            return self._ledger.model_usd(key)
        model = self._models.models.get(key)
        if name == "live.ready":
            return model is not None and model.state().ready
        return 0 if model is None else model.num_waiting()


def user_of(exchange: Exchange) -> str:
    """Who uses the client's application, as far as the request says; "" when it does not."""
    return _field(exchange, "safety_identifier") or _field(exchange, "user") or ""


def _field(exchange: Exchange, name: str) -> Any:  # noqa: ANN401 - any field
    return getattr(exchange.request, name, None)


def _wants_json(exchange: Exchange) -> bool:
    kind = (_field(exchange, "response_format") or {}).get("type")
    return kind in _JSON_FORMATS or _field(exchange, "guided_json") is not None


_READERS: dict[str, Callable[[Exchange], object]] = {
    "request.model": lambda exchange: exchange.request.model,
    "request.endpoint": lambda exchange: exchange.asked.endpoint.name,
    "request.num_messages": lambda exchange: len(_field(exchange, "messages") or ()),
    "request.num_tokens_estimate": lambda exchange: estimate_prompt(exchange.request),
    "request.has_tools": lambda exchange: bool(_field(exchange, "tools") or _field(exchange, "functions")),
    "request.wants_json": _wants_json,
    "request.stream": lambda exchange: exchange.request.is_stream,
    "request.max_tokens": lambda exchange: _field(exchange, "token_limit") or 0,
    "request.reasoning_effort": lambda exchange: _field(exchange, "reasoning_effort") or "",
    "request.user": user_of,
    "principal.key_id": lambda exchange: exchange.principal.key_id,
    "tenant.name": lambda exchange: exchange.principal.tenant,
    "tenant.tier": lambda exchange: "",  # `Facts` knows the tenants, what they have spent, and the time
    "tenant.near_limit": lambda exchange: exchange.admitted.near_limit,
    "tenant.spent_usd": lambda exchange: 0.0,
    "time": lambda exchange: None,
}
