"""The sections `tiers`, `tenants`, `replicas` and `admin`: what the policies say about who asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from policies.convert import KeyPath
from policies.errors import Place, Problem
from policies.names import EnvironmentName, Name, nearest

KeyName = Annotated[
    str,
    Meta(pattern=r"^key-[0-9a-f]{8}$", description="`key-` and the first 8 hex digits of a key's SHA-256."),
]
TenantName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
"""A name with `keys`; else `key-` and the first 8 hex digits of the SHA-256 of an API key, or `default`."""
TierName = Annotated[str, Meta(max_length=64)]
Limit = Annotated[int, Meta(ge=1)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beyond a limit a request is refused with 429. Counts of other workers are up to a second old."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Annotated[
        Limit | None,
        Meta(
            description="Of prompts and answers. A request sets aside its prompt (4 characters a token) and "
            "`max_tokens` for each answer and model that it may ask, or four times the model's mean answer "
            "without it, in its gateway worker; what it really used counts when it ends."
        ),
    ] = None
    concurrent_requests: Annotated[
        Limit | None, Meta(description="In each gateway worker; one with `n` answers counts n times.")
    ] = None
    usd_per_day: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="By the models' `price`, set aside as tokens are; the day begins at midnight UTC."),
    ] = None


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tenants of a tier may do; the tier `default` is that of tenants without one."""

    models: Annotated[
        list[Name] | None, Meta(description="Models and routes that may be asked for. Default: all.")
    ] = None
    limits: Limits = Limits()
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


class AdminSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may manage the running gateway through /admin."""

    principals: Annotated[list[TenantName], Meta(description="Tenants. Default: none.")] = []


def rules_of(name: str, tenants: Mapping[str, Tenant], tiers: Mapping[str, Tier]) -> Tenant:
    """What holds for a tenant: its own rules, else its tier's."""
    own = tenants.get(name, _NOBODY)
    tier_name = own.tier or ("default" if "default" in tiers else "")
    tier = tiers.get(tier_name, _NOBODY)
    limits = {
        field: getattr(own.limits, field) or getattr(tier.limits, field) for field in Limits.__struct_fields__
    }
    models = tier.models if own.models is None else own.models
    return Tenant(tier=tier_name, models=models, limits=Limits(**limits))


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
            for key in rules.get("keys") or []:
                if key in seen or (key in sections["tenants"] and key != name):
                    yield Problem(
                        place, f"{section}.{name}.keys: {key!r} also belongs to {seen.get(key, key)!r}"
                    )
                seen[key] = name


def _is_adapter(sections: Mapping[str, Any], name: str) -> bool:
    engines = ((entry or {}).get("engine") or {} for entry in sections["models"].values())
    return any(name in (engine.get("adapters") or {}) for engine in engines)
