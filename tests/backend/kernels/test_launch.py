"""Triton's kernels without a GPU: their values in the interpreter, and their machine code.

Both in other processes: Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

import pytest
import torch

from backend.kernels import launch
from tests.backend.kernels.ahead import checked
from tests.backend.kernels.cases import COMPILED, ops
from tests.backend.kernels.interpreted import check, interpreted
from tests.backend.kernels.triton_process import triton_process

pytestmark = pytest.mark.timeout(400)  # Triton and Numba compile, on cores that others use as well

KERNELS = Path(launch.__file__).parent


OTHER_ARCHITECTURES = [
    # Of the same kernels: by default one without and one with products of matrices.
    pytest.param(op, arch, marks=() if op in ("swiglu", "paged_attention") else pytest.mark.slow)
    for op in ops()
    for arch in (80, 100)
]
# Kernels name no 16-bit type: float16's code is that of bfloat16.
SHARES_OF_DTYPES = [COMPILED, pytest.param((torch.float16,), marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def compiler() -> Iterator[Executor]:
    with triton_process() as process:
        yield process


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
        monkeypatch.setattr(launch, "architecture", lambda arch=arch: arch)
        for shape, dtype in (("few", torch.float16), ("many", torch.float16), ("few", torch.float32)):
            launch.blocks.cache_clear()
            found[arch, shape, dtype] = launch.blocks("op", shape, dtype).options()["A"]
    launch.blocks.cache_clear()
    assert list(found.values()) == [2, 2, 3, 1, 2, 1]


@pytest.mark.parametrize("dtypes", SHARES_OF_DTYPES, ids=["float32-bfloat16", "float16"])
@pytest.mark.parametrize("op", ops())
def test_values_are_those_of_float64(interpreter: Executor, op: str, dtypes: Sequence[torch.dtype]) -> None:
    assert set(interpreter.submit(interpreted, op, dtypes).result()) == set(dtypes)


@pytest.mark.parametrize(("op", "arch"), [*((op, 90) for op in ops()), *OTHER_ARCHITECTURES])
def test_machine_code(compiler: Executor, op: str, arch: int) -> None:
    """No stack, no spills, wide loads, and tensor cores where matrices are multiplied: see ahead.py."""
    assert {code.arch for code in compiler.submit(checked, op, (arch,)).result()} == {arch}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("op", ops())
def test_values_on_a_gpu(op: str) -> None:
    check(op, "cuda")
