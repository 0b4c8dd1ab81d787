"""Triton's kernels without a GPU: their values in the interpreter, and their machine code.

Both in processes of their own: Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backend.kernels import launch
from tests.backend.kernels.cases import ops

pytestmark = pytest.mark.timeout(400)  # Triton and Numba compile, on cores that others use as well

KERNELS = Path(launch.__file__).parent


def run(module: str, op: str, **environment: str) -> str:
    command = [sys.executable, "-m", f"tests.backend.kernels.{module}", op]
    # Sums of products are fused as on a GPU; later versions warn that this is no longer the default.
    variables = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*/blocks.json")), ids=lambda path: path.parent.name)
def test_blocks_are_well_formed(path: Path) -> None:
    rows = json.loads(path.read_text())
    allowed = {"shape", "dtype", "arch", "sizes", "warps", "stages"}
    assert all({"sizes", "warps", "stages"} <= set(row) <= allowed for row in rows)
    assert set(rows[-1]) == {"sizes", "warps", "stages"}, "the last row fits everything"
    assert all(len(rows[0]["sizes"]) == len(row["sizes"]) for row in rows)


def test_the_first_row_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"shape": "few", "arch": 90, "sizes": {"A": 1}, "warps": 8, "stages": 3},
        {"dtype": "float16", "sizes": {"A": 2}, "warps": 4, "stages": 2},
        {"sizes": {"A": 3}, "warps": 2, "stages": 1},
    ]
    monkeypatch.setattr(launch, "_rows", lambda op: rows)
    found = {}
    for arch in (80, 90):
        monkeypatch.setattr(launch, "_architecture", lambda arch=arch: arch)
        for shape, dtype in (("few", torch.float16), ("many", torch.float16), ("few", torch.float32)):
            launch.blocks.cache_clear()
            found[arch, shape, dtype] = launch.blocks("op", shape, dtype).options()["A"]
    launch.blocks.cache_clear()
    assert list(found.values()) == [2, 2, 3, 1, 2, 1]


@pytest.mark.parametrize("op", ops())
def test_values_are_those_of_float64(op: str) -> None:
    assert run("interpreted", op, TRITON_INTERPRET="1").count("\n") >= 3


@pytest.mark.parametrize("op", ops())
def test_machine_code(op: str) -> None:
    """No stack, no spills, wide loads, and tensor cores where matrices are multiplied: see ahead.py."""
    found = {json.loads(line)["arch"] for line in run("ahead", op).splitlines()}
    assert found == {80, 90, 100}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("op", ops())
def test_values_on_a_gpu(op: str) -> None:
    from tests.backend.kernels.interpreted import check

    check(op, "cuda")
