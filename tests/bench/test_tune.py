"""Candidates for blocks.json: compiled without a GPU, and climbed by times that the test makes up."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from backend.kernels import launch
from tests.backend.kernels.cases import Launch
from tests.bench import tune
from tests.bench.gpu import tuning
from tests.bench.gpu.test_gpu import bench
from tests.bench.gpu.trace import only_recorded
from tests.bench.gpu.tuning import Candidate


def test_candidates_are_compiled_ahead(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    bench("--json", str(path), "tune", "--op", "rms_norm", "--plan")
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) > 2 and [row["in use"] for row in rows].count("yes") == 1
    assert all(row["registers"] > 0 and row["stack"] == row["spills"] == 0 for row in rows), rows
    assert {row["fits"] for row in rows} == {"yes"}


def test_what_is_not_compiled_does_not_fit() -> None:
    case = Launch("broken", lambda dtype: 1 // 0)
    assert tuning._compiled("swiglu", case, {"arch": 90})["fits"] == "no: integer division or modulo by zero"


def test_the_fastest_neighbour_is_followed_until_none_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "in_use", lambda op, shape: Candidate((("BLOCK", 64),), 4, 2))

    def time_us() -> float:
        found = launch.blocks("swiglu", "row", torch.bfloat16)
        if found.sizes["BLOCK"] > 512:
            raise RuntimeError("out of shared memory")
        return 100 / found.sizes["BLOCK"] + found.warps

    monkeypatch.setattr(launch, "architecture", lambda: 90)
    with tuning.first_row("swiglu", Candidate((("BLOCK", 64),), 4, 2).row("row", 90)):
        found = tuning._climb("swiglu", "row", 90, time_us)
    assert (found["row"]["sizes"], found["row"]["warps"]) == ({"BLOCK": 512}, 1)
    assert found["µs best"] == pytest.approx(100 / 512 + 1) and found["µs now"] == pytest.approx(100 / 64 + 4)


def test_classes_of_shapes_are_those_that_a_launch_asks_for() -> None:
    cases = {case.name: case for case in tuning.cases_of("paged_attention").launches}
    found = {}
    with only_recorded(90, lambda *_, **__: None):
        for name in ("decode", "prefill"):
            found[name] = tuning.shapes_of("paged_attention", partial(cases[name].run, torch.bfloat16))
    assert found == {"decode": ["few"], "prefill": ["rows"]}


def test_written_rows_come_first_and_replace_those_for_the_same(tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    last = {"sizes": {"A": 1}, "warps": 1, "stages": 1}
    path.write_text(json.dumps([{"shape": "few", "dtype": "bfloat16", "arch": 90, **last}, last]))
    best = Candidate((("A", 4),), 2, 3).row("few", 90)
    tune.write(path, [best])
    assert json.loads(path.read_text()) == [best, last]
