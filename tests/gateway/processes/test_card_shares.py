"""Engines of `auto` go to the card with the most room; those on one share its memory by their weights."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from backend.config import EngineConfig
from backend.errors import CheckpointError
from gateway.processes import card_shares
from gateway.processes.backends import backend_names, new_backend
from gateway.processes.card_shares import seat
from gateway.processes.cards import Card
from gateway.processes.specs import backend_config
from gateway.settings import Settings
from policies.document import EngineModel, ModelEntry, Parallel, Policies, Quantize
from policies.engine_replicas import ReplicaRange


@pytest.fixture(autouse=True)
def with_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    driver = tmp_path / "driver"
    driver.touch()
    monkeypatch.setattr(card_shares, "DRIVERS", (tmp_path / "none", driver))
    monkeypatch.setattr(card_shares, "cards", tuple)
    return driver


def with_cards(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
    found = tuple(Card(f"GPU-{n}", size, "card") for n, size in enumerate(sizes))
    monkeypatch.setattr(card_shares, "cards", lambda: found)


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
        assert isinstance(config, EngineConfig) and config.gpu_memory == seat(name, each, policies).share
        assert config.card == ""
    return {name: seat(name, each, policies).share for name, each in engines.items()}


def places(**engines: EngineModel) -> dict[str, tuple[str, float]]:
    """The card of each process, and its share."""
    policies = Policies(models={name: ModelEntry(engine=each) for name, each in engines.items()})
    configs = {name: backend_config(name, policies, Settings()).config for name in backend_names(policies)}
    return {
        name: (config.card, config.gpu_memory)
        for name, config in configs.items()
        if isinstance(config, EngineConfig)
    }


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
    assert seat("a", here, policies).share == 0.85


def test_weights_that_cannot_be_read_stop_no_other(tmp_path: Path) -> None:
    broken = engine(tmp_path, "a", 10)
    (tmp_path / "a" / "model.safetensors.index.json").write_text("{")
    assert shares(a=broken, b=engine(tmp_path, "b", 10)) == {"a": 0.05, "b": 0.8}


def test_without_a_card_a_model_that_is_added_restarts_nothing(tmp_path: Path, with_a_card: Path) -> None:
    with_a_card.unlink()
    assert shares(a=engine(tmp_path, "a", 30), b=engine(tmp_path, "b", 10)) == {"a": 0.85, "b": 0.85}


def test_the_largest_goes_first_to_the_card_with_the_most_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cards(monkeypatch, 10_000, 12_000)
    a, b, c = engine(tmp_path, "a", 2000), engine(tmp_path, "b", 6000), engine(tmp_path, "c", 5000)
    found = places(a=a, b=b, c=c)
    assert [found[name][0] for name in "bca"] == ["GPU-1", "GPU-0", "GPU-1"]
    assert found["c"][1] == 0.85 and found["a"][1] + found["b"][1] == pytest.approx(0.85)
    fixed = engine(tmp_path, "fixed", 5000, device="cuda:1")
    found = places(a=a, b=b, fixed=fixed)
    assert found["fixed"][0] == "", "its configuration names its card"
    assert [found[name][0] for name in "ba"] == ["GPU-0", "GPU-1"]


def test_replicas_have_cards_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cards(monkeypatch, 10_000, 10_000)
    found = places(a=engine(tmp_path, "a", 4000, replicas=ReplicaRange(min=0, max=2)))
    assert found == {"a": ("GPU-0", 0.85), "a#1": ("GPU-1", 0.85)}


async def test_a_replica_on_another_card_is_another_process_of_the_same_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So it is restarted where its card changes, and streams go on at any."""
    with_cards(monkeypatch, 10_000, 10_000)
    pair = ModelEntry(engine=engine(tmp_path, "a", 4000, replicas=2))
    with caplog.at_level(logging.INFO, logger="gateway.processes.backends"):
        both = [
            new_backend(name, Policies(models={"a": pair}), Settings(), lambda: None) for name in ("a", "a#1")
        ]
    for each in both:
        await each.close()
    first, second = both
    assert first.spec != second.spec and first.service == second.service
    assert "'a#1' may take 0.85 of the memory of GPU-1" in caplog.text
    other = ModelEntry(engine=msgspec.structs.replace(pair.section, max_running=3))
    changed = new_backend("a", Policies(models={"a": other}), Settings(), lambda: None)
    await changed.close()
    assert changed.service != first.service


def test_shares_that_are_given_take_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cards(monkeypatch, 10_000, 10_000)
    given = {name: engine(tmp_path, name, 10, gpu_memory=0.6) for name in ("a", "b")}
    found = places(**given, c=engine(tmp_path, "c", 2000))
    assert found == {"c": ("GPU-0", 0.25), "a": ("GPU-1", 0.6), "b": ("GPU-0", 0.6)}


def test_an_engine_that_no_card_has_room_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cards(monkeypatch, 10 << 30, 12 << 30)
    sizes = {"a": 9.5, "b": 8.0, "c": 3.0}
    monkeypatch.setattr(card_shares, "_weight_bytes", lambda each: sizes[each.checkpoint] * 2**30)
    models = {name: ModelEntry(engine=EngineModel(checkpoint=name)) for name in sizes}
    policies = Policies(models=models)
    found = {name: seat(name, EngineModel(checkpoint=name), policies) for name in "ab"}
    assert [found[name].card.uuid for name in "ab"] == ["GPU-1", "GPU-0"]
    assert [found[name].share for name in "ab"] == [0.85, 0.85], "what is refused takes nothing"
    message = "'c' has weights of 3.00 GiB, .*cuda:0 0.50 of 10.00 GiB, cuda:1 0.70 of 12.00 GiB; lower"
    with pytest.raises(CheckpointError, match=message):
        seat("c", EngineModel(checkpoint="c"), policies)


@pytest.mark.parametrize("other", [{"gpu_memory": 0.5}, {"gpu_memory": 0.25, "replicas": 2}])
def test_shares_of_more_than_a_card(tmp_path: Path, other: dict[str, object]) -> None:
    one = engine(tmp_path, "one", 20, gpu_memory=0.6, device="cuda:0")
    sleeper = engine(tmp_path, "sleeper", 10, gpu_memory=0.6, replicas=ReplicaRange(min=0, max=2))
    assert len(places(one=one, sleeper=sleeper)) == 3, (
        "it is not there while others are, or tells what it lacks"
    )
    second = engine(tmp_path, "other", 10, **other)
    message = "'other.*' has gpu_memory .*, and no card has room .* left: cuda:0 0.[14]5?; lower gpu_memory"
    with pytest.raises(CheckpointError, match=message):
        places(one=one, other=second)
