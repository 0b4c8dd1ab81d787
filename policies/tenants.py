"""The sections `tiers`, `tenants`, `replicas` and `admin`: what the policies say about who asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from policies.convert import KeyPath
from policies.errors import Place, Problem
from policies.names import EnvironmentName, Name, nearest
from policies.time_limit import check_time

KeyName = Annotated[
    str,
    Meta(pattern=r"^key-[0-9a-f]{8}$", description="`key-` and the first 8 hex digits of a key's SHA-256."),
]
TenantName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
"""A name with `keys`; else `key-` and the first 8 hex digits of the SHA-256 of an API key, or `default`."""
TierName = Annotated[str, Meta(max_length=64)]
Limit = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(gt=0)]
OnFailure = Literal["local", "share", "refuse"]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beyond a limit a request is refused with 429. Limits hold over all workers and replicas together.

    A minute slides; days and months are those of the calendar in UTC. A request sets aside what it may cost
    at most before its model is called: its prompt (4 characters a token) and `max_tokens` for each answer
    and model that it may ask, or `routing.reserve_tokens` without it. What it used counts when it ends.
    """

    requests_per_minute: Limit | None = None
    requests_per_day: Limit | None = None
    requests_per_month: Limit | None = None
    tokens_per_minute: Annotated[Limit | None, Meta(description="Of prompts and answers.")] = None
    tokens_per_day: Limit | None = None
    tokens_per_month: Limit | None = None
    usd_per_minute: Annotated[Amount | None, Meta(description="By the models' `price`.")] = None
    usd_per_day: Amount | None = None
    usd_per_month: Amount | None = None
    machine_seconds_per_minute: Annotated[
        Amount | None,
        Meta(description="Work of our engines, counted when an answer ends."),
    ] = None
    machine_seconds_per_day: Amount | None = None
    machine_seconds_per_month: Amount | None = None
    concurrent_requests: Annotated[
        Limit | None, Meta(description="At the same time; a request with `n` answers counts n times.")
    ] = None

    @property
    def given(self) -> dict[str, float]:
        """All that are set, by field."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in found.items() if value is not None}


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tenants of a tier may do; the tier `default` is that of tenants without one."""

    models: Annotated[
        list[Name] | None, Meta(description="Models and routes that may be asked for. Default: all.")
    ] = None
    limits: Limits = Limits()
    soft_limits: Annotated[
        Limits,
        Meta(
            description="Nothing is refused beyond them: the answer says so in `x-penstock-soft-limit`, and "
            "conditions see the share used in `tenant.near_limit`."
        ),
    ] = Limits()
    limits_per_key: Annotated[Limits, Meta(description="Of each of the tenant's API keys.")] = Limits()
    limits_per_user: Annotated[
        Limits, Meta(description="Of each end user that requests name: `safety_identifier`, else `user`.")
    ] = Limits()
    limits_per_model: Annotated[
        dict[Name, Limits], Meta(description="Of calls of a model, where it is the first that is asked.")
    ] = {}
    description: str = ""


class Tenant(Tier, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tenant. What it sets itself comes before its tier's."""

    tier: Annotated[
        TierName,
        Meta(
            description="One of `tiers`, or `default`, which a tenant without one has. Where the policies "
            "have no `tiers`, any word, for conditions such as `tenant.tier == 'gold'`."
        ),
    ] = ""
    parent: Annotated[
        str,
        Meta(description="Another one of `tenants`, whose `limits` also hold for the sum of its children."),
    ] = ""
    keys: Annotated[
        list[KeyName],
        Meta(
            description="Ids of this tenant's API keys, for one that has a name: `key-XXXXXXXX` as `penstock "
            "keys id` prints it, never a key itself."
        ),
    ] = []


class ReplicasSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gateways that serve the same clients: they share counts, and say when their policies differ."""

    redis_url_env: Annotated[
        EnvironmentName | None,
        Meta(description="The variable with the URL of their Redis. Default: this gateway is alone."),
    ] = None
    prefix: Annotated[str, Meta(min_length=1, max_length=100, description="Of all names in Redis.")] = (
        "penstock"
    )
    on_failure: Annotated[
        OnFailure,
        Meta(
            description="What holds for tenants with limits while Redis does not answer. `share`: what was "
            "left at its last answer, divided by the gateway workers that were known; `local`: all of it in "
            "each worker; `refuse`: nothing, their requests get 503."
        ),
    ] = "share"
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="How long a request waits for Redis before `on_failure` holds. Raise it where Redis "
            "is far away, or shares a busy machine.",
        ),
    ] = 50


class AdminSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may manage the running gateway through /admin."""

    principals: Annotated[list[TenantName], Meta(description="Tenants. Default: none.")] = []


def rules_of(name: str, tenants: Mapping[str, Tenant], tiers: Mapping[str, Tier]) -> Tenant:
    """What holds for a tenant: its own rules, else its tier's."""
    own = tenants.get(name, _NOBODY)
    tier_name = own.tier or ("default" if "default" in tiers else "")
    tier = tiers.get(tier_name, _NOBODY)
    per_model = {
        model: _merged(own.limits_per_model.get(model), tier.limits_per_model.get(model))
        for model in {**own.limits_per_model, **tier.limits_per_model}
    }
    return Tenant(
        tier=tier_name,
        parent=own.parent,
        models=tier.models if own.models is None else own.models,
        limits=_merged(own.limits, tier.limits),
        soft_limits=_merged(own.soft_limits, tier.soft_limits),
        limits_per_key=_merged(own.limits_per_key, tier.limits_per_key),
        limits_per_user=_merged(own.limits_per_user, tier.limits_per_user),
        limits_per_model=per_model,
    )


def _merged(own: Limits | None, tiers: Limits | None) -> Limits:
    given: dict[str, Any] = {**(tiers or Limits()).given, **(own or Limits()).given}
    return Limits(**given)


def parents_of(name: str, tenants: Mapping[str, Tenant]) -> list[str]:
    """The tenant's parent, its parent, and so on; each once."""
    found: list[str] = []
    while (parent := tenants.get(name, _NOBODY).parent) and parent not in found:
        found.append(parent)
        name = parent
    return found


_NOBODY = Tenant()


def tenant_problems(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """Tiers and models that do not exist, and keys of two tenants."""
    tiers, seen = sections["tiers"], dict[str, str]()
    known = [*sections["models"], *sections["routes"]]
    for section in ("tiers", "tenants"):
        for name, entry in sections[section].items():
            place, rules = places[section, name], entry or {}
            if tiers and rules.get("tier") and rules["tier"] not in ("default", *tiers):
                hint = nearest(rules["tier"], tiers)
                yield Problem(place, f"{section}.{name}.tier {rules['tier']!r} is not one of tiers{hint}")
            for model in rules.get("models") or []:
                if model not in known and ":" not in model and not _is_adapter(sections, model):
                    message = (
                        f"{section}.{name}.models has the unknown model {model!r}{nearest(model, known)}"
                    )
                    yield Problem(place, message)
            yield from _limit_problems(section, name, sections, places)
            for key in rules.get("keys") or []:
                if key in seen or (key in sections["tenants"] and key != name):
                    yield Problem(
                        place, f"{section}.{name}.keys: {key!r} also belongs to {seen.get(key, key)!r}"
                    )
                seen[key] = name


def _limit_problems(
    section: str, name: str, sections: Mapping[str, Any], places: Mapping[KeyPath, Place]
) -> Iterator[Problem]:
    """A parent that is no tenant or its own ancestor, and limits of models that do not exist."""
    rules, place, tenants = sections[section][name] or {}, places[section, name], sections["tenants"]
    for model in rules.get("limits_per_model") or {}:
        if model not in sections["models"] and not _is_adapter(sections, model):
            hint = nearest(model, sections["models"])
            yield Problem(place, f"{section}.{name}.limits_per_model has the unknown model {model!r}{hint}")
    parent, line = str(rules.get("parent") or ""), [name]
    if parent and parent not in tenants:
        yield Problem(
            place, f"{section}.{name}.parent {parent!r} is not one of tenants{nearest(parent, tenants)}"
        )
    while parent in tenants:
        check_time()
        line.append(parent)
        if parent in line[:-1]:
            yield Problem(
                place, f"{section}.{name}.parent leads back to it: {' > '.join(line)}; leave one out"
            )
            return
        parent = str((tenants[parent] or {}).get("parent") or "")


def _is_adapter(sections: Mapping[str, Any], name: str) -> bool:
    engines = ((entry or {}).get("engine") or {} for entry in sections["models"].values())
    return any(name in (engine.get("adapters") or {}) for engine in engines)
