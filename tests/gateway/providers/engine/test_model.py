"""Fingerprints of what an engine answers with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.providers.engine.model import EngineModel

FACTS = {"revision": "r", "dtype": "float32", "kv_dtype": "bfloat16", "device": "cpu"}


def fingerprint(adapter: str = "", **changes: str) -> str | None:
    client: Any = SimpleNamespace(
        hello=SimpleNamespace(**FACTS | changes), adapters={"a": SimpleNamespace(digest="d")}
    )
    return EngineModel(client, "m", adapter).fingerprint


@pytest.mark.parametrize(
    "change",
    [{"revision": "s"}, {"dtype": "bfloat16"}, {"kv_dtype": "int8"}, {"device": "cuda"}, {"adapter": "a"}],
)
def test_equal_fingerprints_mean_equal_weights_and_arithmetic(change: dict[str, str]) -> None:
    assert fingerprint() == fingerprint() != fingerprint(**change)


def test_an_engine_that_is_away_has_none() -> None:
    assert fingerprint(revision="") is None
    away: Any = SimpleNamespace(hello=None, adapters={})
    assert EngineModel(away, "m").fingerprint is None
