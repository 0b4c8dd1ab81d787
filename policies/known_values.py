"""What the variables of conditions can be under one version of the policies, as far as that is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from policies.comparisons import Known
from policies.endpoints import ENDPOINTS
from policies.languages import LANGUAGES, language_hint
from policies.names import Effort
from policies.variables import DOMAINS

FRESHNESS = ("static", "slow", "volatile", "never")


def known_values(sections: Mapping[str, Any], route: str = "") -> Mapping[str, Known]:
    """By variable, for the rules of a route or, without one, for those of `routing`."""
    models = [*sections["models"], *adapters(sections)]
    asked = [route] if route else [*models, *sections["routes"]]
    return {
        "request.model": Known(
            asked, what="model or route" if not route else f"request: all are for {route!r}"
        ),
        "request.endpoint": Known(tuple(ENDPOINTS), what="endpoint"),
        "request.reasoning_effort": Known(("", *get_args(Effort)), what="effort"),
        "tenant.name": _tenants(sections),
        "tenant.tier": _tiers(sections),
        "principal.key_id": Known(("",), "[0-9a-f]{8}", "key id: it is 8 hex digits, without key-"),
        "signals.language": Known(("", *LANGUAGES), what="code of ISO 639-1", suggest=language_hint),
        "signals.domain": Known(("", *DOMAINS), what="domain"),
        "signals.freshness": Known(FRESHNESS, what="freshness"),
        "signals.previous_model": Known(("", *models), what="model"),
    }


def adapters(sections: Mapping[str, Any]) -> Iterator[str]:
    """Both names of every adapter, `NAME` and `BASE:NAME`."""
    for base, entry in sections["models"].items():
        for name in ((entry or {}).get("engine") or {}).get("adapters") or {}:
            yield from (name, f"{base}:{name}")


def key_owners(sections: Mapping[str, Any]) -> Mapping[str, str]:
    """The named tenant that has each key, by `key-` and the key's id."""
    tenants = sections["tenants"].items()
    return {key: name for name, entry in tenants for key in (entry or {}).get("keys") or [] if key}


def _tenants(sections: Mapping[str, Any]) -> Known:
    owners = key_owners(sections)
    others = "".join(f"(?!{key}$)" for key in owners)

    def suggest(value: str) -> str:
        return f"; its tenant is {owners[value]!r}" if value in owners else ""

    return Known(("default", *sections["tenants"]), f"{others}key-[0-9a-f]{{8}}", "tenant", suggest)


def _tiers(sections: Mapping[str, Any]) -> Known:
    given = {(entry or {}).get("tier") for entry in sections["tenants"].values()}
    names = {"default", *sections["tiers"], *(name for name in given if name)}

    def suggest(value: str) -> str:
        return "" if value else "; a tenant without a tier has 'default'"

    return Known(names, what="tier", suggest=suggest)
