"""Limits in USD that would not count what a model costs, because the model has no price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from policies.convert import KeyPath
from policies.errors import Place, Problem

Sections = Mapping[str, Mapping[str, Any]]
FREE = "price: {input_usd_per_million_tokens: 0, output_usd_per_million_tokens: 0}"


def price_problems(sections: Sections, places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """Models without a price that callers with a limit in USD may ask. Encoders need none."""
    unpriced = [name for name, entry in sections["models"].items() if _needs_price(entry)]
    has_price = any((entry or {}).get("price") for entry in sections["models"].values())
    for path, asked in _limited(sections):
        reached = None if asked is None else _reached(asked, sections)
        if not has_price:
            what = f"{'.'.join(path)} counts nothing, as no model has a `price`; add one to the models"
            yield Problem(_place(places, path), what)
            continue
        for name in [name for name in unpriced if reached is None or name in reached]:
            unpriced.remove(name)
            message = (
                f"models.{name} has no `price`, so {'.'.join(path)} would not count what it costs; add "
                f"one, or for a model that costs nothing `{FREE}`"
            )
            yield Problem(places["models", name], message)


def _needs_price(entry: Mapping[str, Any] | None) -> bool:
    return entry is not None and entry.get("price") is None and entry.get("encoder") is None


def _limited(sections: Sections) -> Iterator[tuple[KeyPath, list[str] | None]]:
    """Each limit in USD, with the models and routes that may be asked under it; None: all of them."""
    for section in ("tiers", "tenants"):
        for name, entry in sections[section].items():
            for path in _in_usd(entry or {}):
                if path[0] == "limits_per_model":
                    yield (section, name, *path), [path[1]]
                else:
                    yield (section, name, *path), _models(section, name, sections)


def _in_usd(entry: Mapping[str, Any]) -> Iterator[KeyPath]:
    kinds: dict[KeyPath, Any] = {(key,): entry.get(key) for key in _LIMITS}
    per_model = entry.get("limits_per_model") or {}
    kinds |= {("limits_per_model", model): limits for model, limits in per_model.items()}
    for path, limits in kinds.items():
        for unit, amount in (limits or {}).items():
            if unit.startswith("usd_per_") and amount is not None:
                yield (*path, unit)


def _models(section: str, name: str, sections: Sections) -> list[str] | None:
    """What a tenant, or the tenants of a tier, may ask for; None: everything."""
    own = sections[section][name] or {}
    who = [own]
    if section == "tenants" and own.get("models") is None:
        tiers = sections["tiers"]
        who = [tiers.get(own.get("tier") or "default") or {}]
    elif section == "tiers":
        tenants = [entry or {} for entry in sections["tenants"].values()]
        who += [t for t in tenants if (t.get("tier") or "default") == name and t.get("models") is not None]
    found: list[str] = []
    for entry in who:
        if entry.get("models") is None:
            return None
        found += entry["models"]
    return found


def _reached(asked: list[str], sections: Sections) -> set[str]:
    """The models that may answer for these models, adapters and routes. Tenants pay for no shadow."""
    models, routes = sections["models"], sections["routes"]
    rules = [rule or {} for rule in sections["routing"].get("rules") or []]
    found = {*asked, *(name for rule in rules for name in _targets(rule))}
    for route in (routes[name] or {} for name in asked if name in routes):
        found.update(_targets(route))
        found.update(name for rule in route.get("rules") or [] for name in _targets(rule or {}))
    for name, entry in models.items():
        adapters = ((entry or {}).get("engine") or {}).get("adapters") or {}
        if any(each in found or f"{name}:{each}" in found for each in adapters):
            found.add(name)
        if ((entry or {}).get("release") or {}).get("of") in found:
            found.add(name)
    return found


def _targets(action: Mapping[str, Any]) -> Iterator[str]:
    if action.get("model"):
        yield action["model"]
    for key, where in _SEVERAL:
        yield from (action.get(key) or {}).get(where) or ()
    for names in (action.get("fallback") or {}).values():
        yield from names or ()


def _place(places: Mapping[KeyPath, Place], path: KeyPath) -> Place:
    while path not in places:
        path = path[:-1]
    return places[path]


_LIMITS = ("limits", "limits_per_key", "limits_per_user")
_SEVERAL = (("split", "models"), ("choose", "candidates"), ("cascade", "models"), ("best_of", "models"))
