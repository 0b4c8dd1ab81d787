"""Engines on one card share its memory by the size of their weights."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backend.config import EngineConfig
from gateway.processes import card_shares
from gateway.processes.card_shares import gpu_share
from gateway.processes.specs import backend_config
from gateway.settings import Settings
from policies.document import EngineModel, ModelEntry, Parallel, Policies, Quantize
from policies.engine_replicas import ReplicaRange


@pytest.fixture(autouse=True)
def with_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    driver = tmp_path / "driver"
    driver.touch()
    monkeypatch.setattr(card_shares, "DRIVERS", (tmp_path / "none", driver))
    return driver


def engine(folder: Path, name: str, size: int, **fields: object) -> EngineModel:
    checkpoint = folder / name
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(bytes(size))
    (checkpoint / "another.safetensors").write_bytes(bytes(9999))  # not read by the engine
    return EngineModel(checkpoint=str(checkpoint), **fields)  # type: ignore[arg-type]


def shares(**engines: EngineModel) -> dict[str, float]:
    policies = Policies(models={name: ModelEntry(engine=each) for name, each in engines.items()})
    for name, each in engines.items():
        config = backend_config(name, policies, Settings()).config
        assert isinstance(config, EngineConfig) and config.gpu_memory == gpu_share(each, policies)
    return {name: gpu_share(each, policies) for name, each in engines.items()}


def test_shares_follow_weights(tmp_path: Path) -> None:
    large, small = engine(tmp_path, "large", 3000), engine(tmp_path, "small", 1000, device="cuda:0")
    assert shares(large=large) == {"large": 0.85}
    found = shares(large=large, small=small)
    assert found == {"large": 0.05 + 0.75 * 0.75, "small": 0.05 + 0.75 * 0.25}
    many = shares(large=large, **{f"m{n}": small for n in range(30)})
    assert sum(many.values()) == pytest.approx(0.85, abs=0.002), "each gets a part of it"


def test_rounded_weights_are_smaller_and_replicas_count(tmp_path: Path) -> None:
    quantized = engine(tmp_path, "a", 2000, quantize=Quantize(scheme="int8"))
    pair = engine(tmp_path, "b", 1000, replicas=ReplicaRange(min=0, max=2))
    found = shares(a=quantized, b=pair)
    assert found["a"] == found["b"] == pytest.approx(0.85 / 3, abs=1e-4)


def test_shares_that_are_given_win(tmp_path: Path) -> None:
    given, other = engine(tmp_path, "a", 10, gpu_memory=0.6), engine(tmp_path, "b", 1000)
    assert shares(a=given, b=other) == {"a": 0.6, "b": 0.25}
    most = msgspec.structs.replace(given, gpu_memory=0.9)
    assert shares(a=most, b=other) == {"a": 0.9, "b": 0.05}


@pytest.mark.parametrize(
    "fields",
    [
        {"device": "cuda:1"},
        {"device": "cpu"},
        {"parallel": Parallel(tensor=2)},
        {"dns": "tls://e.example:7600"},
    ],
)
def test_engines_elsewhere_take_nothing(tmp_path: Path, fields: dict[str, object]) -> None:
    here = engine(tmp_path, "a", 10)
    policies = Policies(
        models={"a": ModelEntry(engine=here), "b": ModelEntry(engine=engine(tmp_path, "b", 9, **fields))}
    )
    assert gpu_share(here, policies) == 0.85


def test_weights_that_cannot_be_read_stop_no_other(tmp_path: Path) -> None:
    broken = engine(tmp_path, "a", 10)
    (tmp_path / "a" / "model.safetensors.index.json").write_text("{")
    assert shares(a=broken, b=engine(tmp_path, "b", 10)) == {"a": 0.05, "b": 0.8}


def test_without_a_card_a_model_that_is_added_restarts_nothing(tmp_path: Path, with_a_card: Path) -> None:
    with_a_card.unlink()
    assert shares(a=engine(tmp_path, "a", 30), b=engine(tmp_path, "b", 10)) == {"a": 0.85, "b": 0.85}
