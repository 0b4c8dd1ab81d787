"""Which rows of blocks.json suit a kernel in Triton, measured on a GPU; `--plan` only compiles them.

A candidate differs from the row in use by one size, the warps or the stages. The fastest one is taken and its
neighbours are tried, until none is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.gpu.cards import CARDS

KERNELS = Path(__file__).parents[2] / "backend" / "kernels"
OPS = sorted(path.parent.name for path in KERNELS.glob("*/blocks.json"))
_KEYS = ("shape", "dtype", "arch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench tune`."""
    parser.add_argument("--op", choices=OPS, required=True)
    parser.add_argument("--plan", action="store_true", help="compile the candidates, without a GPU")
    parser.add_argument("--card", choices=CARDS, default="h100", help="of the plan (default h100)")
    parser.add_argument("--write", action="store_true", help="write the fastest rows to blocks.json")


def run(arguments: argparse.Namespace) -> None:
    """Compile candidates, or measure them."""
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # read when Triton is imported
    import torch

    from tests.bench.gpu import tuning

    op = arguments.op
    if arguments.plan:
        rows = list(tuning.planned(op, CARDS[arguments.card].arch))
        report.show(f"tune · {op} on {arguments.card}", rows, arguments.json)
        return
    if not torch.cuda.is_available():
        sys.exit("tune: torch finds no CUDA device here; --plan compiles the candidates without one")
    best = list(tuning.measured(op))
    report.show(f"tune · {op} on {torch.cuda.get_device_name()}", best, arguments.json)
    if arguments.write:
        write(KERNELS / op / "blocks.json", [row["row"] for row in best if row["row"]])


def write(path: Path, best: list[dict[str, Any]]) -> None:
    """Put rows before all others of blocks.json, in place of those for the same."""
    fresh = [tuple(row.get(key) for key in _KEYS) for row in best]
    kept = [row for row in json.loads(path.read_text()) if tuple(map(row.get, _KEYS)) not in fresh]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in (*best, *kept))
    path.write_text(f"[\n{lines}\n]\n")
