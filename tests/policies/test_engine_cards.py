"""Shares of one card that are more than the card are refused, with the names of the models."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.engine_cards import card_of
from policies.errors import PolicyError
from policies.load import load_policies


def load(folder: Path, **engines: str) -> list[str]:
    lines = [
        f"  {name}: {{engine: {{checkpoint: /models/{name}, {keys}}}}}\n" for name, keys in engines.items()
    ]
    (folder / "m.yaml").write_text("models:\n" + "".join(lines))
    try:
        load_policies(folder)
    except PolicyError as error:
        return [f"{each.place.line} {each.message}" for each in error.problems]
    return []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gpu_memory: 0.6, device: cuda", "gpu_memory: 0.4, device: cuda"),
        ("gpu_memory: 0.6, device: cuda", "gpu_memory: 0.6, device: 'cuda:1'"),
        ("gpu_memory: 0.6, device: cuda", "gpu_memory: 0.6, device: cpu"),
        ("gpu_memory: 0.6, device: cuda", "gpu_memory: 0.6, device: cuda, replicas: {min: 0, max: 1}"),
        (
            "gpu_memory: 0.6, device: cuda",
            "gpu_memory: 0.6, device: cuda, addresses: ['tcp://127.0.0.1:7600']",
        ),
        ("gpu_memory: 0.95", "max_running: 4"),
        ("gpu_memory: 0.6", "gpu_memory: 0.6"),  # of two cards
    ],
)
def test_shares_that_fit(tmp_path: Path, one: str, other: str) -> None:
    assert load(tmp_path, one=one, other=other) == []


@pytest.mark.parametrize(
    ("one", "other", "total"),
    [
        ("gpu_memory: 0.6, device: cuda", "gpu_memory: 0.5, device: 'cuda:0'", "1.1"),
        ("gpu_memory: 0.6, device: cuda", "gpu_memory: 0.25, device: cuda, replicas: 2", "1.1"),
        ("gpu_memory: 0.6, device: cuda", "gpu_memory: 0.3, device: cuda, replicas: {min: 2, max: 3}", "1.2"),
    ],
)
def test_shares_of_more_than_a_card(tmp_path: Path, one: str, other: str, total: str) -> None:
    (found,) = load(tmp_path, one=one, other=other)
    assert found.startswith("3 models.other.engine.gpu_memory: the engines of one, other take " + total)
    assert "cuda:0" in found and "lower gpu_memory" in found


@pytest.mark.parametrize("parallel", ["{tensor: 2}", "{pipeline: 2}"])
def test_ranks_do_not_sleep(tmp_path: Path, parallel: str) -> None:
    (found,) = load(tmp_path, one=f"offload_after_s: 60, parallel: {parallel}")
    assert found.startswith("2 models.one.engine.offload_after_s: needs an engine of one rank")
    assert load(tmp_path, one="offload_after_s: 60, parallel: {tensor: 1}") == []


def test_cards() -> None:
    assert [card_of(device) for device in ("auto", "cuda", "cuda:3", "cpu")] == [
        "cuda:0",
        "cuda:0",
        "cuda:3",
        "",
    ]
