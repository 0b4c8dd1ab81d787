"""EngineConfig reaches the engine process unchanged."""

from __future__ import annotations

import msgspec
import pytest

from backend.config import EngineConfig


def test_engine_config_survives_the_process_boundary() -> None:
    config = EngineConfig(model="m", checkpoint="/c", dtype="float32", num_pages=9)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"model": "m", "checkpoint": "/c", "surprise": 1}', type=EngineConfig)
