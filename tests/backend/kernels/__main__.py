"""Writes backend/kernels/README.md: python -m tests.backend.kernels."""

from __future__ import annotations

import importlib
import re
from concurrent.futures import Executor
from pathlib import Path

from tests.backend.kernels.ahead import ARCHITECTURES, checked
from tests.backend.kernels.cases import DTYPES, ops
from tests.backend.kernels.interpreted import interpreted
from tests.backend.kernels.triton_process import triton_process

PAGE = Path(__file__).resolve().parents[3] / "backend" / "kernels" / "README.md"
HEAD = """# Kernels

Operations of a decoder, one folder each: `__init__.py` has the formula, the shapes and the only branch on the
device, `reference.py` is torch, `kernel.py` Triton and `loop.py` Numba. `blocks.json` says how a kernel is
launched: the first row that fits the shape, dtype and architecture.

`python -m tests.backend.kernels` writes this page, without a GPU. Errors are the largest share of a result's
norm, in Triton's interpreter against float64. Registers, shared memory and tensor cores are those of machine
code compiled for sm_90 in bfloat16; a stack or spills on sm_80, 90 or 100 end it with an error. The tests
compile for sm_90, and two kernels for the others; `pytest -m slow` compiles all. `pytest -m gpu` computes the
same values on a GPU.

`python -m tests.bench gpu --plan` prints what a step launches and its least time on a named card. Without
`--plan` it checks and measures everything on the GPU that is here, in nine minutes, with torch, triton,
numpy, numba, safetensors and msgspec alone. `python -m tests.bench tune --op NAME` finds rows for
`blocks.json`; with `--plan` it only compiles them.

| kernel | launch | bound | error fp32, fp16, bf16 | registers | shared bytes | tensor cores | measured |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Compile, compute and write."""
    with triton_process(TRITON_INTERPRET="1") as interpreter, triton_process() as compiler:
        rows = [row for op in ops() for row in rows_of(op, interpreter, compiler)]
    PAGE.write_text(HEAD + "\n".join(rows) + "\n", "utf-8")


def rows_of(op: str, interpreter: Executor, compiler: Executor) -> list[str]:
    """The rows of the table for one folder."""
    text = re.sub(r"\s+", " ", importlib.import_module(f"backend.kernels.{op}").__doc__ or "")
    bound = re.search(r"Bound: (\w+)", text)
    assert bound is not None, f"{op} does not say what bounds it"
    errors = interpreter.submit(interpreted, op).result()
    worst = ", ".join(f"{errors[dtype]:.0e}" for dtype in DTYPES)
    rows = []
    for code in compiler.submit(checked, op, ARCHITECTURES).result():
        case, _, dtype = code.case.rpartition(" ")
        if code.arch == 90 and dtype == "bfloat16":
            cells = [
                f"`{op}.{code.kernel.lstrip('_')}`", case, bound[1], worst, code.registers,
                f"{code.shared_bytes:,}", ", ".join(code.tensor_cores) or "-", "not yet",
            ]  # fmt: skip
            rows.append(f"| {' | '.join(map(str, cells))} |")
    return rows


if __name__ == "__main__":
    main()
