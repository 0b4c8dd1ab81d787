"""What `cases.py` of a kernel's folder holds: how it is called, and what its machine code must look like."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, dtype, float16, float32
from torch import bfloat16 as _bfloat16

DTYPES = (float32, float16, _bfloat16)
COMPILED = (float32, _bfloat16)  # as machine code; float16's is that of bfloat16
TOLERANCES = {float32: 1e-5, float16: 4e-3, _bfloat16: 3e-2}
"""The errors of a result against float64, as shares of its norm."""


@dataclass(frozen=True)
class Value:
    """One call of a kernel and what it should have computed."""

    name: str
    run: Callable[[dtype, str], tuple[Tensor, Tensor]]
    """dtype and device → the result, and the same in float64."""


@dataclass(frozen=True)
class Launch:
    """One call whose kernels are compiled for GPUs that are not there."""

    name: str
    run: Callable[[dtype], object]
    tensor_cores: Sequence[str] = ()  # the kernels that multiply matrices
    narrow: Sequence[str] = ()  # the kernels that need no loads of 128 bits
    is_large: bool = False  # its products are wide enough for a warp group's instructions
    dtypes: Sequence[dtype] = (_bfloat16,)


@dataclass(frozen=True)
class Cases:
    """All cases of one kernel's folder."""

    values: Sequence[Value]
    launches: Sequence[Launch]


def ops() -> list[str]:
    """The folders beside this file that have cases."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/cases.py"))


def cases_of(op: str) -> Cases:
    """Imports Triton."""
    found: Cases = importlib.import_module(f"tests.backend.kernels.{op}.cases").CASES
    return found
