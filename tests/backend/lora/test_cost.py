"""What adapters cost those who use none: a handful of calls per step, whatever the model's size."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import load_model
from backend.pico.export import WEIGHTS
from tests.backend.lora.making import Recipe, write_adapter
from tests.bench.adapters import new_engine, new_request, step_until

MOST_CALLS = 8


def calls_per_step(engine: Engine) -> float:
    """Functions called in a step in which two sequences decode, in Python and in C."""
    for number in range(2):
        engine.add(new_request(number, "", 60))
    step_until(engine, lambda: engine.scheduler.num_running == 2)
    count, steps = 0, 8

    def see(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    engine.step()
    sys.setprofile(see)
    try:
        for _ in range(steps):
            engine.step()
    finally:
        sys.setprofile(None)
    return count / steps


@pytest.mark.parametrize("name", ["pico-small", "pico-large"])
def test_a_step_without_adapters_hardly_knows_that_there_are_some(name: str, tmp_path: Path) -> None:
    config = EngineConfig(model=name, checkpoint=str(WEIGHTS / name), device="cpu")
    model = load_model(config)
    store = AdapterStore(model.sites, AdapterLimits(num_slots=2), model.dtype, model.device)
    recipe = Recipe(rank=4, ends=("q_proj", "down_proj"))
    adapter = store.load_now("a", write_adapter(tmp_path / "a", model, recipe)).digest
    plain = calls_per_step(new_engine(config, model, None, 2))
    engine = new_engine(config, model, store, 2)
    engine.add(new_request(9, adapter, 2))  # from now on every layer has it in a slot
    step_until(engine, lambda: not engine.has_work)
    served = calls_per_step(engine)
    assert plain > 100
    assert served - plain <= MOST_CALLS
