"""The GPUs of this machine, as nvidia-smi tells: the gateway loads no torch to ask."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

_QUERY = ("--query-gpu=index,uuid,memory.total,mig.mode.current,name", "--format=csv,noheader,nounits")
_TIMEOUT_S = 20.0


class Card(NamedTuple):
    """One GPU."""

    uuid: str = ""
    num_bytes: int = 0
    name: str = ""


@cache
def cards() -> tuple[Card, ...]:
    """Cards that engines see, in the order of their numbers; none where that cannot be told for sure."""
    try:
        done = subprocess.run(
            ("nvidia-smi", *_QUERY), capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        return read_cards(done.stdout, os.environ)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def read_cards(table: str, environment: Mapping[str, str]) -> tuple[Card, ...]:
    """What nvidia-smi printed. Raises ValueError where cards are split (MIG), or their numbers not sure."""
    found: dict[str, Card] = {}
    for line in table.splitlines():
        index, uuid, mib, mig, name = (each.strip() for each in line.split(",", 4))
        if mig == "Enabled":
            raise ValueError(f"the card {uuid} is split by MIG")
        found[index] = Card(uuid, int(mib) << 20, name)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found.values())
    is_sure = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({*map(_kind, found.values())}) == 1
    named = [each.strip() for each in visible.split(",")]
    if not is_sure and any(map(str.isdigit, named)):
        raise ValueError(f"CUDA_VISIBLE_DEVICES is {visible!r}, and CUDA numbers different cards by speed")
    shown = []
    for each in named:
        begun = [card for card in found.values() if each.startswith("GPU-") and card.uuid.startswith(each)]
        own = [found[each]] if each in found else begun
        if len(own) != 1:  # CUDA shows none of those from an unknown one on
            break
        shown += own
    return tuple(shown)


def _kind(card: Card) -> tuple[int, str]:
    return card.num_bytes, card.name


def describe(uuid: str) -> str:
    """The card with this uuid, for logs; "" is the one that the configuration names."""
    if not uuid:
        return "its card"
    found = {card.uuid: f"cuda:{n} ({card.name}, {uuid})" for n, card in enumerate(cards())}
    return found.get(uuid, uuid)
