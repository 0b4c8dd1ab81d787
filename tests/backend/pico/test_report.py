"""Tables have the measured values, and only the text between their markers changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from backend.pico import report
from backend.pico.report import fill, tables, with_plots
from tests.backend.pico.report_data import results


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "pico-small"
    folder.mkdir()
    save_file({"a": torch.zeros(30, 40, dtype=torch.bfloat16), "b": torch.zeros(2)}, folder / "m.safetensors")
    (tmp_path / "gate.json").write_text('{"pico-small": {"tiers 1-2": 98.76}}')
    return tmp_path


def test_tables_have_the_measured_values(weights: Path) -> None:
    found = tables(results(), weights)
    assert "| pico-small | 75.0 | 50.0 | 25.0 | 0.0 | 0.0 |" in found["tiers"]
    assert "| pico-large, thinking | 100.0 | 100.0 | 100.0 | 100.0 | 100.0 |" in found["tiers"]
    assert "| arithmetic | 75 | 50 | 25 | 0 | 0 |" in found["small"]
    assert "| arithmetic | 100 / 100 | 75 / 100 | 50 / 100 | 25 / 100 | 0 / 100 |" in found["large"]
    assert "**100.0 / 100.0** | **75.0 / 100.0**" in found["large"]
    assert "| pico-small | 1.100 | 1.200 | 1.300 | 1.400 | 1.500 | 7.0 |" in found["perplexity"]
    assert "| draft | all | 80 / 80 | 40 / 40 | 1.80 | 1.40 |" in found["acceptance"]
    assert "| json | pico-small | 8 | 36 | 98.5 | 97.0 |  | 99.0 |" in found["adapters"]
    assert "| 2 | 25.0 | 25.0 | 75.0 | 75.0 |" in found["load"]
    assert "| `pico-small` | 1,202 |" in found["sizes"]
    assert "| pico-small | tiers 1-2 | 98.8 |" in found["gate"]
    for table in found.values():
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_what_was_not_measured_has_no_table(weights: Path) -> None:
    assert set(tables({}, weights)) == {"sizes", "gate"}
    assert set(tables({"small": results()["small"], "acceptance": {}}, weights)) == {
        "sizes", "gate", "tiers", "perplexity", "small",
    }  # fmt: skip


def test_fill_changes_only_its_placeholders() -> None:
    text = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n<!-- begin y -->\nkept\n<!-- end y -->\n"
    once = fill(text, {"x": "| 1 |\n"})
    assert once == text.replace("old\n", "| 1 |\n")
    assert fill(once, {"x": "| 1 |\n"}) == once


def test_plots_follow_their_tables(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "load.svg").touch()
    found = with_plots({"load": "| 1 |\n", "gate": "| 2 |\n"}, tmp_path / "plots")
    assert found == {"load": "| 1 |\n\n![load](plots/load.svg)\n", "gate": "| 2 |\n"}


def test_the_report_has_a_place_for_every_table(weights: Path) -> None:
    places = re.findall(r"<!-- begin ([a-z]+) -->", report.REPORT.read_text(encoding="utf-8"))
    assert sorted(places) == sorted(tables(results(), weights))
