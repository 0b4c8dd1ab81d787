"""Which share of a GPU's memory each engine may take where several are on one card."""

from __future__ import annotations

from pathlib import Path

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.server.engine_check import weight_bytes
from gateway.checkpoints import checkpoint_folder
from policies.document import EngineModel, Policies
from policies.engine_cards import card_of

ALL: float = EngineConfig(model="", checkpoint="").gpu_memory
"""What engines take of a card together; of what others were given, the rest of that."""
LEAST = 0.05
"""The share of the smallest engine, where there are few."""

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""One is there where torch may find a GPU. Elsewhere shares mean nothing, and must restart nothing."""

_ROUNDED = {"int8": 0.5, "fp8": 0.5, "int4": 0.28, "": 1.0}
"""What rounding leaves of a checkpoint in 16 bits."""


def gpu_share(engine: EngineModel, policies: Policies) -> float:
    """The share of its card of one process of an engine of these policies.

    Its own `gpu_memory`; else its part, by the size of its weights, of what engines with one of their own
    leave. Every replica that may run counts. Engines of several ranks are not counted.
    """
    if engine.gpu_memory is not None:
        return engine.gpu_memory
    card = card_of(engine.device)
    if not _is_on(card, engine) or not any(map(Path.exists, DRIVERS)):
        return ALL
    engines = [entry.engine for entry in policies.models.values() if entry.engine is not None]
    on_card = [each for each in engines if _is_on(card, each)]
    given = sum(each.gpu_memory * each.replica_range.max for each in on_card if each.gpu_memory)
    left = max(ALL - given, (1 - given) / 2, LEAST)
    unset = [each for each in on_card if each.gpu_memory is None]
    count = sum(each.replica_range.max for each in unset)
    least = min(LEAST, left / count)
    weights = sum(_weight_bytes(each) * each.replica_range.max for each in unset)
    part = _weight_bytes(engine) / weights if weights else 1 / count
    return round(least + (left - least * count) * part, 4)


def _is_on(card: str, engine: EngineModel) -> bool:
    parallel = engine.parallel
    is_one = parallel.tensor * parallel.pipeline * parallel.expert * parallel.sequence == 1
    return is_one and not engine.is_remote and bool(card) and card_of(engine.device) == card


def _weight_bytes(engine: EngineModel) -> float:
    """Its weights on the device; 0 for a checkpoint that cannot be read, which its engine reports."""
    try:
        size = weight_bytes(checkpoint_folder(engine.checkpoint))
    except (CheckpointError, OSError):
        return 0.0
    return size * _ROUNDED[engine.quantize.scheme if engine.quantize else ""]
