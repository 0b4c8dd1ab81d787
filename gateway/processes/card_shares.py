"""Which GPU each engine is on, and which share of its memory it may take where several are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.server.engine_check import weight_bytes
from gateway.checkpoints import checkpoint_folder
from gateway.processes.cards import Card, cards
from policies.document import EngineModel, Policies
from policies.engine_cards import ROUNDING, card_of
from policies.names import replica_names

ALL: float = EngineConfig(model="", checkpoint="").gpu_memory
"""What engines take of a card together; of what others were given, the rest of that."""
LEAST = 0.05
"""The share of the smallest engine, where there are few."""

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""One is there where torch may find a GPU. Elsewhere shares mean nothing, and must restart nothing."""

_ROUNDED = {"int8": 0.5, "fp8": 0.5, "int4": 0.28, "": 1.0}
"""What rounding leaves of a checkpoint in 16 bits."""
_NOWHERE = ""


class Seat(NamedTuple):
    """Where a process computes."""

    share: float  # of its card's memory
    card: Card = Card()  # that `auto` means; without a uuid, the first


class _Process(NamedTuple):
    name: str
    engine: EngineModel
    num_bytes: float  # of its weights on the device
    always_runs: bool


def seat(name: str, engine: EngineModel, policies: Policies) -> Seat:
    """The place of the process `name` of an engine of these policies. Raises CheckpointError without room.

    Of several cards `auto` is the one that larger engines leave the most room on. The share is `gpu_memory`;
    else the engine's part, by the size of its weights, of what those with one of their own leave of the card.
    Every replica that may run counts. Engines of several ranks are not counted.
    """
    if not _is_here(engine) or not any(map(Path.exists, DRIVERS)):
        return Seat(engine.gpu_memory or ALL)
    found = cards()
    known = {f"cuda:{n}": card for n, card in enumerate(found if len(found) > 1 else (Card(),))}
    there: dict[str, list[_Process]] = defaultdict(list)
    own = _NOWHERE
    for each in sorted(
        _processes(policies), key=lambda each: (each.engine.device == "auto", -each.num_bytes)
    ):
        place = card_of(each.engine.device)
        if each.engine.device == "auto":
            place = max(known, key=lambda card: _room([*there[card], each], known[card]))
            if not _fits(each, there[place], known[place]):
                place = _NOWHERE
        if each.name == name:
            if place == _NOWHERE:
                raise CheckpointError(_refusal(each, there, known))
            own = place
        there[place].append(each)
    card = known[own] if engine.device == "auto" else Card()
    return Seat(engine.gpu_memory or _share(name, there[own]), card)


def _share(name: str, there: Sequence[_Process]) -> float:
    left = max(_left(there), LEAST)
    sizes = {each.name: each.num_bytes for each in there if each.engine.gpu_memory is None}
    least, total = min(LEAST, left / len(sizes)), sum(sizes.values())
    part = sizes[name] / total if total else 1 / len(sizes)
    return round(least + (left - least * len(sizes)) * part, 4)


def _given(there: Sequence[_Process]) -> float:
    return sum(each.engine.gpu_memory or 0.0 for each in there)


def _left(there: Sequence[_Process]) -> float:
    """The share of a card for engines that were given none."""
    given = _given(there)
    return max(ALL - given, (1 - given) / 2)


def _room(there: Sequence[_Process], card: Card) -> float:
    """Bytes of that which weights leave."""
    unset = sum(each.num_bytes for each in there if each.engine.gpu_memory is None)
    return _left(there) * card.num_bytes - unset


def _fits(process: _Process, there: Sequence[_Process], card: Card) -> bool:
    """Whether one more has room; of a card that is alone, or of unknown size, its engine tells it itself."""
    if process.engine.gpu_memory is None:
        return not card.num_bytes or _room([*there, process], card) > -1
    return _given([each for each in (*there, process) if each.always_runs]) <= 1 + ROUNDING


def _refusal(process: _Process, there: Mapping[str, Sequence[_Process]], known: Mapping[str, Card]) -> str:
    share = process.engine.gpu_memory
    if share is None:
        wanted = f"weights of {process.num_bytes / 2**30:.2f} GiB"
        rooms = {name: max(0.0, _room(there[name], card)) / 2**30 for name, card in known.items()}
        left = [
            f"{name} {rooms[name]:.2f} of {card.num_bytes / 2**30:.2f} GiB" for name, card in known.items()
        ]
    else:
        wanted, left = f"gpu_memory {share:g}", [f"{name} {1 - _given(there[name]):.2g}" for name in known]
    return (
        f"engine {process.name!r} has {wanted}, and no card has room for that; beside other engines is "
        f"left: {', '.join(left)}; lower gpu_memory or replicas, quantize weights, or choose another device"
    )


def _processes(policies: Policies) -> Iterator[_Process]:
    """All that compute on one card each."""
    for model, entry in policies.models.items():
        if (engine := entry.engine) is not None and _is_here(engine):
            size = _weight_bytes(engine)
            count = engine.replica_range
            for number, name in enumerate(replica_names(model, count.max)):
                yield _Process(name, engine, size, number < count.min)


def _is_here(engine: EngineModel) -> bool:
    parallel = engine.parallel
    is_one = parallel.tensor * parallel.pipeline * parallel.expert * parallel.sequence == 1
    return is_one and not engine.is_remote and bool(card_of(engine.device))


def _weight_bytes(engine: EngineModel) -> float:
    """Its weights on the device; 0 for a checkpoint that cannot be read, which its engine reports."""
    try:
        size = weight_bytes(checkpoint_folder(engine.checkpoint))
    except (CheckpointError, OSError):
        return 0.0
    return size * _ROUNDED[engine.quantize.scheme if engine.quantize else ""]
