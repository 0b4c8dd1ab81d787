"""What nvidia-smi prints becomes the cards by their numbers, or nothing where that is not sure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.processes.cards import Card, cards, describe, read_cards

TABLE = """\
0, GPU-aa, 143771, Disabled, NVIDIA H200
1, GPU-bb, 143771, Disabled, NVIDIA H200, of a name with a comma
"""
A, B = (
    Card("GPU-aa", 143771 << 20, "NVIDIA H200"),
    Card("GPU-bb", 143771 << 20, "NVIDIA H200, of a name with a comma"),
)
OTHER = TABLE.replace("143771", "24576", 1)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program of this name, which is the only one that is found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cards.cache_clear()
    yield tmp_path / "nvidia-smi"
    cards.cache_clear()


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_what_the_program_prints(nvidia_smi: Path) -> None:
    script(nvidia_smi, f'[ "$2" = --format=csv,noheader,nounits ] || exit 2\nprintf %s "{TABLE}"')
    assert cards() == (A, B)
    assert describe("GPU-bb") == f"cuda:1 ({B.name}, GPU-bb)"
    assert (describe(""), describe("GPU-gone")) == ("its card", "GPU-gone")


@pytest.mark.parametrize(
    "body", ["", "echo oops; exit 6", "echo no table", "echo '0, GPU-aa, [N/A], [N/A], GB10'"]
)
def test_where_it_tells_nothing_no_card_is_known(nvidia_smi: Path, body: str) -> None:
    if body:
        script(nvidia_smi, body)
    assert cards() == ()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        *(("1", (B,)), ("1, 0", (B, A)), ("GPU-bb", (B,)), ("", ()), ("7", ())),
        *(("1,-1,0", (B,)), ("-1", ()), ("0,7,1", (A,))),  # from an unknown one on, none
        *(("GPU-b,GPU-a", (B, A)), ("GPU-", ()), ("G", ())),  # as much of a UUID as tells it apart
    ],
)
def test_only_cards_that_cuda_shows(visible: str, expected: tuple[Card, ...]) -> None:
    same = TABLE.replace(", of a name with a comma", "")
    found = read_cards(same, {"CUDA_VISIBLE_DEVICES": visible})
    assert [card.uuid for card in found] == [card.uuid for card in expected]


def test_numbers_that_are_not_sure() -> None:
    """CUDA numbers different cards by their speed, unless it is told otherwise."""
    assert [card.uuid for card in read_cards(OTHER, {})] == ["GPU-aa", "GPU-bb"]
    with pytest.raises(ValueError, match="by speed"):
        read_cards(OTHER, {"CUDA_VISIBLE_DEVICES": "0"})
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert [card.uuid for card in read_cards(OTHER, by_bus)] == ["GPU-aa"]
    assert [card.uuid for card in read_cards(OTHER, {"CUDA_VISIBLE_DEVICES": "GPU-bb"})] == ["GPU-bb"]


def test_cards_that_are_split_are_left_alone() -> None:
    with pytest.raises(ValueError, match="GPU-aa is split by MIG"):
        read_cards(TABLE.replace("Disabled", "Enabled", 1), {})
