"""Training pairs from templates of our own: a request in several wordings, with slots to change or swap."""

from __future__ import annotations

from pathlib import Path
from random import Random

from cache.verify.words import read_sections

_PARTS = read_sections(Path(__file__).with_suffix(".txt"))
SLOTS = {name: values.split("|") for name, _, values in (line.partition("=") for line in _PARTS["slots"])}

# One family a line. Wordings are separated by |; a slot is {kind}, or {kind1} and {kind2} for two of a kind.
# After "~": the two slots may change places without harm.
FAMILIES = _PARTS["families"]


def families() -> list[tuple[tuple[str, ...], bool]]:
    """(wordings, whether two slots of a kind may change places)."""
    found = []
    for line in FAMILIES:
        body, symmetric = line.removesuffix("~"), line.endswith("~")
        found.append((tuple(body.split("|")), symmetric))
    return found


def _fill(wordings: tuple[str, ...], random: Random) -> dict[str, str]:
    """A value for each slot that occurs; those of a kind are different."""
    slots: dict[str, str] = {}
    for kind, values in SLOTS.items():
        names = [name for name in (kind, f"{kind}1", f"{kind}2") if any(f"{{{name}}}" in w for w in wordings)]
        slots |= zip(names, random.sample(values, len(names)), strict=True)
    return slots


def _refill(slots: dict[str, str], symmetric: bool, random: Random) -> tuple[dict[str, str], str]:
    """Other values after which another answer is right, and what was changed."""
    twins = [name[:-1] for name in slots if name.endswith("1") and f"{name[:-1]}2" in slots]
    if twins and not symmetric and random.random() < 0.55:
        kind = random.choice(twins)
        return slots | {f"{kind}1": slots[f"{kind}2"], f"{kind}2": slots[f"{kind}1"]}, "roles"
    name = random.choice(list(slots))
    kind = name.rstrip("12")
    others = [value for value in SLOTS[kind] if value not in slots.values()]
    return slots | {name: random.choice(others)}, "number" if kind in ("year", "small", "large") else "slot"


def make_pair(random: Random) -> tuple[str, str, bool, str]:
    """(a, b, same, what was changed)."""
    wordings, symmetric = random.choice(families())
    slots = _fill(wordings, random)
    one = random.choice(wordings)
    if random.random() < 0.45:
        other = random.choice([wording for wording in wordings if wording != one])
        if symmetric and random.random() < 0.5:
            swapped = {
                (n[:-1] + ("2" if n[-1] == "1" else "1") if n[-1] in "12" else n): v for n, v in slots.items()
            }
            return one.format_map(slots), other.format_map(swapped), True, "same"
        return one.format_map(slots), other.format_map(slots), True, "same"
    other = one if random.random() < 0.6 else random.choice(wordings)
    refilled, kind = _refill(slots, symmetric, random)
    return one.format_map(slots), other.format_map(refilled), False, kind
