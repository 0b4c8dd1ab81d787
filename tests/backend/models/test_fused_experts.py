"""Which models hold their experts a second time, for the compiled loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import EngineConfig
from backend.layers.moe import MoE
from backend.models.loaded import load_model
from tests.backend.engine.driving import texts
from tests.backend.speculative.model_targets import new_engine, requests, write_model


@pytest.mark.parametrize(
    ("dtype", "width", "is_held"),
    [("float32", 32, True), ("bfloat16", 32, False), ("float32", 40, False)],
)
def test_fused_experts_of_whole_tiles_in_float32(
    tmp_path: Path, dtype: str, width: int, is_held: bool
) -> None:
    write_model(tmp_path, "qwen3_moe", hidden_size=32, moe_intermediate_size=width)
    model = load_model(EngineConfig(model="t", checkpoint=str(tmp_path), device="cpu", dtype=dtype))
    parts = [layer.feed_forward for layer in model.decoder.layers]
    assert [isinstance(part, MoE) and part.fused is not None for part in parts] == [is_held] * 3
    assert all(len(text) > 1 for text in texts(new_engine(model)[0], requests()))
