"""Limits in USD that would not count what a model costs, because the model has no price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from policies.check_routes import targets_of
from policies.convert import KeyPath, nearest_place
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
            yield Problem(nearest_place(places, path), what)
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
    tiers, tenants = sections["tiers"], {key: entry or {} for key, entry in sections["tenants"].items()}
    if section == "tenants":
        family = [name]
        for parent in family:  # grows by their children
            family += [k for k, entry in tenants.items() if entry.get("parent") == parent and k not in family]
        own = [tenants[each] for each in family]
        callers = [
            e if e.get("models") is not None else tiers.get(e.get("tier") or "default") or {} for e in own
        ]
    else:
        named = [e for e in tenants.values() if e.get("models") and (e.get("tier") or "default") == name]
        callers = [tiers[name] or {}, *named]
    lists = [entry.get("models") for entry in callers]
    return None if None in lists else [name for names in lists for name in names or ()]


def _reached(asked: list[str], sections: Sections) -> set[str]:
    """The models that may answer for these models, adapters and routes. Tenants pay for no shadow."""
    routes = [sections["routes"][name] or {} for name in asked if name in sections["routes"]]
    actions = [
        *routes,
        *(rule for each in (sections["routing"], *routes) for rule in each.get("rules") or []),
    ]
    named = (targets_of(action or {}) for action in actions)
    found = {*asked, *(name for path, name in chain.from_iterable(named) if path[0] != "shadow")}
    for name, entry in sections["models"].items():
        adapters = ((entry or {}).get("engine") or {}).get("adapters") or {}
        of = ((entry or {}).get("release") or {}).get("of")
        if of in found or any({each, f"{name}:{each}"} & found for each in adapters):
            found.add(name)
    return found


_LIMITS = ("limits", "limits_per_key", "limits_per_user")
