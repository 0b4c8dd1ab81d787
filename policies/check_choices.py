"""Warnings about choices that are none: one candidate, nothing to weigh, a fallback to what just failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from policies.convert import KeyPath, nearest_place
from policies.errors import Place, Problem


def choice_warnings(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """Warnings about the choice of every route and rule."""
    for path, action in _actions(sections):
        for where, message in (
            *_single(action),
            *_unweighed(action.get("choose") or {}, sections["models"]),
            *_repeated(action),
        ):
            place = (*path, *where)
            yield Problem(nearest_place(places, place), f"{'.'.join(place)} {message}")


def _actions(sections: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Each action with its path."""
    for number, rule in enumerate(sections["routing"].get("rules") or []):
        yield ("routing", "rules", str(number)), rule or {}
    for name, route in sections["routes"].items():
        yield ("routes", name), route or {}
        for number, rule in enumerate((route or {}).get("rules") or []):
            yield ("routes", name, "rules", str(number)), rule or {}


def _single(action: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for key, where in (("choose", "candidates"), ("split", "models"), ("best_of", "models")):
        names = (action.get(key) or {}).get(where) or {}
        if len(names) != 1 or (key == "best_of" and next(iter(names.values())) != 1):
            continue
        only = next(iter(names))
        what = "makes one answer" if key == "best_of" else "has one model"
        yield (key,), f"{what}, so there is nothing to choose; write `model: {only}`, or add another"
    models = (action.get("cascade") or {}).get("models") or []
    if len(set(models)) < len(models):
        yield ("cascade", "models"), "asks a model twice; remove one"


def _unweighed(choose: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    candidates = choose.get("candidates") or {}
    strategy = choose.get("strategy", "quality_per_cost")
    is_learned = strategy in ("fastest", "bandit") or choose.get("cost_by") == "machine_seconds"
    if is_learned or len(candidates) < 2 or choose.get("estimate") or choose.get("latency_weight"):
        return
    if not all(name in models for name in candidates):  # an adapter's price is its model's
        return
    qualities = {(each or {}).get("quality", 0.5) for each in candidates.values()}
    costs = {_cost(name, each or {}, models) for name, each in candidates.items()}
    if len(costs) == 1 and (len(qualities) == 1 or strategy == "cheapest"):
        what = "cost" if strategy == "cheapest" else "quality and cost"
        remedy = "give them `cost` or the models a `price`"
        remedy += "" if strategy == "cheapest" else ", or `quality`, or choose by an `estimate`"
        yield ("choose",), f"has nothing to weigh: all candidates have the same {what}; {remedy}"


def _cost(name: str, candidate: Mapping[str, Any], models: Mapping[str, Any]) -> object:
    price = (models[name] or {}).get("price") or {}
    own = candidate.get("cost")
    return sum(value for value in price.values() if value) if own is None else own


def _repeated(action: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Models that are asked again after they have failed, and copies to the model that answers."""
    only = action.get("model")
    for key, names in (action.get("fallback") or {}).items():
        names = [name for name in names or [] if name]
        if only is not None and only in names:
            yield (
                ("fallback", key),
                f"leads back to {only!r}, the model that has just failed; name another one",
            )
        elif len(set(names)) < len(names):
            yield ("fallback", key), "names a model twice; remove one"
    if only is not None and (action.get("shadow") or {}).get("model") == only:
        yield ("shadow", "model"), f"is {only!r}, which answers already; name another model"
