from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.config import EngineConfig, ParallelConfig
from backend.engine.engine import Engine
from backend.parallel.children import Children
from backend.parallel.mirror import MirroredModel
from backend.server import engine_process
from backend.server.engine_process import build_engine

WEIGHTS = Path(__file__).parents[3] / "backend/pico/weights"


class TwoRanks:
    """An engine of two ranks, its model, and the configuration of the same without the other rank."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parallel: ParallelConfig) -> None:
        self.config = EngineConfig(
            model="pico",
            checkpoint=str(WEIGHTS / "pico-small"),
            device="cpu",
            dtype="float32",
            num_threads=1,
            num_pages=64,
            adapters={"german": str(WEIGHTS / "adapters/german")},
        )
        opened: list[MirroredModel] = []
        open_model = engine_process.open_model

        def open_and_keep(*args: object) -> MirroredModel:
            model = open_model(*args)  # type: ignore[arg-type]
            assert isinstance(model, MirroredModel)
            opened.append(model)
            return model

        monkeypatch.setattr(engine_process, "open_model", open_and_keep)
        split = EngineConfig(
            **{name: getattr(self.config, name) for name in self.config.__struct_fields__}
            | {"parallel": parallel}
        )
        self.engine, self.hello = build_engine(split)
        (self.model,) = opened

    def alone(self) -> Engine:
        return build_engine(self.config)[0]


@pytest.fixture(scope="package", params=["tensor", "pipeline"])
def two_ranks(request: pytest.FixtureRequest) -> Iterator[TwoRanks]:
    """One of each kind for all tests of the package: its other rank is a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Children, "command", (sys.executable, "-m", "tests.backend.parallel.faulty_worker"))
        found = TwoRanks(patch, ParallelConfig(**{request.param: 2}))
    yield found
    found.engine.close()
    found.model.close()
