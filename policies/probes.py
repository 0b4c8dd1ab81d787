"""The `probes` section: requests with the decision that the rules must take about them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from policies.names import Name

CacheUse = Literal["none", "exact", "semantic"]
ProbeName = Annotated[str, Meta(min_length=1, max_length=128)]
Instant = Annotated[
    str,
    Meta(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)$",
        description='When the request comes, as "2026-01-31T08:00Z". Default: now.',
    ),
]


class Live(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state that models are in during a probe."""

    ready: Annotated[dict[Name, bool], Meta(description="Default: true.")] = {}
    spent_usd: Annotated[
        dict[Name, Annotated[float, Meta(ge=0)]], Meta(description="On each model, today. Default: 0.")
    ] = {}
    tenant_spent_usd: Annotated[float, Meta(ge=0, description="By the tenant, today.")] = 0.0
    queue: Annotated[dict[Name, Annotated[int, Meta(ge=0)]], Meta(description="Default: 0.")] = {}


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must be decided. What is left out may be anything."""

    route: Annotated[str | None, Meta(description='"" for a request that names a model.')] = None
    rule: Annotated[
        str | None, Meta(description="The rule's `name`, or as in explanations: `rule 2`, `default`.")
    ] = None
    model: Annotated[Name | None, Meta(description="Of a split, any of its models will do.")] = None
    status: Annotated[
        Annotated[int, Meta(ge=200, le=499)] | None,
        Meta(description="Of the refusal; 200: not refused. Default: 200 with `model`."),
    ] = None
    cache: Annotated[CacheUse | None, Meta(description="How an answer may be found in the cache.")] = None
    guardrails: Annotated[
        list[str] | None,
        Meta(
            description="All that guardrails must find in the request, as traces name it (`email`, "
            "`injection:override`), or only the check (`injection`); `[]`: nothing. Hooks are not asked."
        ),
    ] = None
    blocked: Annotated[
        bool | None,
        Meta(description="Whether a guardrail refuses the request; a rule's refusal is a `status`."),
    ] = None
    masked: Annotated[
        list[str] | None,
        Meta(
            description="All that guardrails mask or redact in the request, as traces name it (`email`, "
            "`pattern:codename`), or only the check (`pattern`); `[]`: nothing."
        ),
    ] = None


class Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request and its expectation."""

    expect: Expectation
    request: Annotated[
        dict[str, Any], Meta(description="Body of a chat request; `model` is `auto` by default.")
    ] = {}
    ask: Annotated[str, Meta(description="In place of `messages`: the user's only turn.")] = ""
    headers: dict[str, str] = {}
    tenant: Annotated[str, Meta(description="Default: `default`.")] = "default"
    time: Instant | None = None
    live: Live = Live()

    def body(self) -> dict[str, Any]:
        """The request's body."""
        turns = [{"role": "user", "content": self.ask or "Hello"}]
        return {"model": "auto", "messages": turns, **self.request}
