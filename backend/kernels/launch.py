"""How Triton's kernels are launched: the blocks that suit a shape, a dtype and an architecture.

`blocks.json` beside a kernel has rows of {"shape", "dtype", "arch", "sizes", "warps", "stages"}. The first
row that fits is taken; one without "shape", "dtype" or "arch" fits all. The last row fits everything, in at
most 99 KiB of shared memory.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Blocks:
    """The options of one launch."""

    sizes: dict[str, int]  # the kernel's constants
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """The keyword arguments of a launch."""
        return {**self.sizes, "num_warps": self.warps, "num_stages": self.stages}


@functools.cache
def blocks(op: str, shape: str, dtype: torch.dtype) -> Blocks:
    """What suits `op` on the current device for inputs of `dtype`; `shape` is a class that the op names."""
    name, arch = str(dtype).removeprefix("torch."), architecture()
    for row in _rows(op):
        asked = {"shape": shape, "dtype": name, "arch": arch}
        if all(row.get(key, value) == value for key, value in asked.items()):
            return Blocks(row["sizes"], row["warps"], row["stages"])
    raise AssertionError(f"{op}/blocks.json has no row for everything")


@functools.cache
def _rows(op: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((_FOLDER / op / "blocks.json").read_text())
    return rows


def architecture() -> int:
    """90 of an H100; 0 of the interpreter."""
    if triton.knobs.runtime.interpret:
        return 0
    return int(triton.runtime.driver.active.get_current_target().arch)
