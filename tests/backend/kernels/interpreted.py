"""Values of Triton's kernels in its interpreter.

TRITON_INTERPRET=1 python -m tests.backend.kernels.interpreted OP

The interpreter holds bfloat16 as 16 bits and would multiply those as integers: operands of `dot` are widened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.backend.kernels.cases import DTYPES, TOLERANCES, cases_of

_create_dot = interpreter.InterpreterBuilder.create_dot


def _widened(handle: interpreter.TensorHandle) -> interpreter.TensorHandle:
    if handle.dtype.scalar == tl.bfloat16:
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
    return handle


def _create_dot_of_floats(self, a, b, *rest):  # noqa: ANN001, ANN002, ANN202
    return _create_dot(self, _widened(a), _widened(b), *rest)


def _filled_with_nan(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What a kernel leaves out is seen in its results; integers get the lowest number."""

    def filled(*arguments: object, **options: object) -> torch.Tensor:
        made = make(*arguments, **options)
        return made.fill_(float("nan") if made.is_floating_point() else torch.iinfo(made.dtype).min)

    return filled


def check(op: str, device: str = "cpu", dtypes: Sequence[torch.dtype] = DTYPES) -> dict[torch.dtype, float]:
    """All values of `op` against float64: the largest error of each dtype. Raises AssertionError."""
    largest = dict.fromkeys(dtypes, 0.0)
    for case in cases_of(op).values:
        for dtype in dtypes:
            torch.manual_seed(3)
            empty, empty_like = _filled_with_nan(torch.empty), _filled_with_nan(torch.empty_like)
            with patch.multiple(torch, empty=empty, empty_like=empty_like):
                found, exact = case.run(dtype, device)
            assert found.dtype is dtype, f"{case.name}: {found.dtype}"
            error = ((found.double() - exact).norm() / exact.norm().clamp_min(1e-30)).item()
            print(f"{op} {case.name} {dtype} {error:.1e}", flush=True)
            assert error <= TOLERANCES[dtype], f"{case.name}, {dtype}: {error}"
            largest[dtype] = max(largest[dtype], error)
    return largest


def interpreted(op: str, dtypes: Sequence[torch.dtype] = DTYPES) -> dict[torch.dtype, float]:
    """The same on a CPU."""
    widen_products()
    return check(op, dtypes=dtypes)


def widen_products() -> None:
    """Let the interpreter multiply bfloat16 as numbers."""
    interpreter.InterpreterBuilder.create_dot = _create_dot_of_floats


if __name__ == "__main__":
    interpreted(sys.argv[1])
