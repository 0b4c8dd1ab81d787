"""Engines on GPUs: which card each is on, shares that do not fit, and what engines of several ranks lack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from policies.convert import KeyPath
from policies.errors import Place, Problem

ROUNDING = 1e-6
"""How far a sum of shares may be off."""


def card_of(device: str) -> str:
    """The card of an engine with this `device`, where the machine has one; "" for a CPU."""
    return "" if device == "cpu" else device if ":" in device else "cuda:0"


def card_problems(
    sections: Mapping[str, Mapping[str, Any]], places: Mapping[KeyPath, Place]
) -> Iterator[Problem]:
    """Engines whose shares of one card, as `gpu_memory` says, are more than the card, and ranks that sleep.

    Replicas that only run under load are not counted, nor are engines of several ranks, nor those of `auto`:
    where they are depends on the machine.
    """
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for name, entry in sections["models"].items():
        engine = (entry or {}).get("engine") or {}
        share, device = engine.get("gpu_memory"), engine.get("device", "auto")
        count = engine.get("replicas", 1)
        ranks = engine.get("parallel") or {}
        if engine.get("offload_after_s") is not None and any(each != 1 for each in ranks.values()):
            path = ("models", name, "engine", "offload_after_s")
            yield Problem(
                places[path], f"{'.'.join(path)}: needs an engine of one rank; leave it out, or parallel"
            )
        if not isinstance(share, float | int) or any(map(engine.get, ("addresses", "dns", "parallel"))):
            continue
        always = count.get("min", 0) if isinstance(count, Mapping) else count
        if device != "auto" and (card := card_of(device)) and isinstance(always, int):
            shares[card][name] = share * always
    for card, of_card in shares.items():
        if (total := sum(of_card.values())) > 1 + ROUNDING:
            path = ("models", next(reversed(of_card)), "engine", "gpu_memory")
            yield Problem(
                places[path],
                f"{'.'.join(path)}: the engines of {', '.join(of_card)} take {total:g} of the memory of "
                f"{card} together, replicas included, and it has 1; lower gpu_memory, leave it out for shares"
                " by the size of weights, or choose another device",
            )
