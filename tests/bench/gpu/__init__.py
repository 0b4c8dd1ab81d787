"""The engine on a GPU: first right, then fast, each figure against its target; `--plan` needs no GPU.

The plan prints each part's bytes, FLOPs, launches and programs, its floor on a card and its target, and
what would be served end to end. Without it everything is measured, in nine minutes at most (`--quick`:
three), each section in a process of its own and with a limit: compile; values, draws and tokens of all
kernels; equal, the same tokens with overlap and drafts on and off; tokens per second of models with random
weights, alone to 70b; drafts, adapters and prefix hits; kernels and parts. Rows go to results/ as they come.
torch, triton, numpy, numba, safetensors and msgspec are enough. backend/README.md tells how to read the rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from tests.bench import report
from tests.bench.gpu.cards import CARDS, Card
from tests.bench.gpu.shapes import MODELS

Row = dict[str, Any]
RESULTS = Path(__file__).parents[1] / "results"
NEEDED = ("torch", "triton", "numpy", "numba", "safetensors", "msgspec")
LIMIT_S = {
    "compile": 40, "tokens": 40, "draws": 15, "equal": 30, "values": 70, "alone": 70, "batch": 100,
    "drafts": 60, "adapters": 50, "prefix": 40, "mixtral": 70, "70b": 80, "kernels": 25, "parts": 35,
}  # fmt: skip
"""Sections in their order, and the most that each may take; all of them together have `WHOLE_S`."""

NAMES = tuple(LIMIT_S)
QUICK = ("tokens", "draws", "equal", "alone", "batch", "drafts")
WHOLE_S, QUICK_S = 530.0, 170.0
LEAST_S = 10.0
"""A section is skipped where less is left."""

END_S = 5.0
"""What a section that runs out of time has to tell its last row."""

CPU_FACTOR = 10  # a CPU is given more time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench gpu`."""
    parser.add_argument("--plan", action="store_true", help="print the plan, without a GPU")
    parser.add_argument("--card", choices=CARDS, help="default: the one that is here, else h100")
    parser.add_argument("--model", choices=MODELS, help="of the plan (default: those of the targets)")
    parser.add_argument("--only", default="", help=f"sections (default all: {','.join(NAMES)})")
    parser.add_argument("--quick", action="store_true", help=f"only {','.join(QUICK)}, shorter answers")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cuda: the first that CUDA_VISIBLE_DEVICES shows (default); cpu: tiny models, to try it out",
    )
    parser.add_argument(
        "--results", type=Path, help=f"folder of the records (default {RESULTS.name}/ beside the benchmarks)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Plan, or measure; exits with 1 if a check fails or a section breaks off."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"gpu: {', '.join(missing)} cannot be imported; install what is missing")
    only = arguments.only.replace(",", " ").split()
    if unknown := set(only) - set(NAMES):
        sys.exit(f"gpu: --only {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    if arguments.plan:
        _plan(arguments)
        return
    asked = only or (QUICK if arguments.quick else NAMES)
    card, name = _card(arguments)
    folder = arguments.results or (RESULTS if arguments.device == "cuda" else Path(arguments.dir, "results"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"gpu: no results can be kept in {folder} ({error.strerror}); name a folder with --results")
    factor = CPU_FACTOR if arguments.device == "cpu" else 1
    until_s = time.monotonic() + factor * (QUICK_S if arguments.quick else WHOLE_S)
    found = [
        _measure(section, arguments, card, folder / f"{name}.json", until_s)
        for section in NAMES
        if section in asked
    ]
    if not all(found):
        sys.exit(1)


def _plan(arguments: argparse.Namespace) -> None:
    from tests.bench.gpu import jobs, plan

    card = CARDS[arguments.card or "h100"]
    sections, steps = plan.rows(arguments.model, card)
    report.show(f"gpu · a layer's parts on {card.name}", sections, arguments.json)
    report.show(f"gpu · whole steps on {card.name}", steps, arguments.json)
    if arguments.model is None:
        report.show(f"gpu · served end to end on {card.name}", jobs.plan_rows(card), arguments.json)
        budgets = [
            {"section": name, "at most s": limit_s, "quick": "yes" if name in QUICK else "no"}
            for name, limit_s in LIMIT_S.items()
        ]
        whole = f"at most {WHOLE_S:.0f} s together, --quick {QUICK_S:.0f} s"
        report.show(f"gpu · sections in their order, {whole}", budgets, arguments.json)


def _card(arguments: argparse.Namespace) -> tuple[Card, str]:
    """The card, and the name of the file of its results."""
    import torch

    if arguments.device == "cpu":
        return CARDS[arguments.card or "h100"], "cpu"
    if not torch.cuda.is_available():
        sys.exit(
            f"gpu: torch {torch.__version__} finds no CUDA device here; install a CUDA build of torch and "
            "the driver, or try --plan, or --device cpu"
        )
    full = torch.cuda.get_device_name().lower()
    name = arguments.card or next((card for card in CARDS if card in full), None)
    if name is None:
        sys.exit(f"gpu: the limits of {full!r} are not known; name a similar card with --card")
    return CARDS[name], name


def _measure(section: str, arguments: argparse.Namespace, card: Card, results: Path, until_s: float) -> bool:
    """Run a section in a process of its own, show and keep its rows; whether all is right.

    An error on a GPU ends everything that its process could do there.
    """
    begin = time.monotonic()
    limit_s = min(LIMIT_S[section] * (CPU_FACTOR if arguments.device == "cpu" else 1), until_s - begin)
    if limit_s < LEAST_S:
        print(f"\ngpu · {section}: SKIPPED, {max(limit_s, 0):.0f} s are left of the whole time")
        return True
    command = _command(section, arguments, card, limit_s)
    rows: list[Row] = []
    reason = ""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors, _started(command, errors) as process:
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.rstrip().endswith("}"):
                rows.append(json.loads(line))
                _keep(section, rows[-1], results)
        if process.wait():
            errors.seek(0)
            told = errors.read().strip().splitlines() or [f"ended with {process.returncode}"]
            is_late = time.monotonic() - begin >= limit_s
            reason = f"took longer than {limit_s:.0f} s" if is_late else told[-1]
        timer.cancel()
    is_right = not reason and all(row.get("check") != "FAILED" for row in rows)
    took_s = time.monotonic() - begin
    report.show(f"gpu · {section} on {results.stem} · {took_s:.0f} s", rows, arguments.json)
    if reason:
        print(f"  BROKE OFF: {reason}", flush=True)
    record = {"section": section, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "seconds": took_s}
    record |= {"machine": report.machine(), "is_right": is_right, "reason": reason, "rows": rows}
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return is_right


def _command(section: str, arguments: argparse.Namespace, card: Card, limit_s: float) -> list[str]:
    program = [sys.executable, "-m", "tests.bench.gpu", section, arguments.device, card.name]
    return [*program, f"{limit_s - END_S:.0f}", str(arguments.quick)]


def _started(command: list[str], errors: IO[str]) -> subprocess.Popen[str]:
    variables = {"TRITON_DEFAULT_FP_FUSION": "1", **os.environ}
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True)


MARKDOWN = ("row", "work", "measured", "unit", "at least", "aim", "check", "note")
"""Columns of the table in Markdown."""


def _keep(section: str, row: Row, results: Path) -> None:
    """Write a row as soon as it is there: as JSON, and those of end-to-end sections as Markdown."""
    with results.with_suffix(".rows.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"section": section, **row}) + "\n")
    if "row" not in row:
        return
    path = results.with_suffix(".md")
    is_new = not path.exists()
    with path.open("a", encoding="utf-8") as file:
        if is_new:
            file.write(f"| section | {' | '.join(MARKDOWN)} |\n{'|---' * (len(MARKDOWN) + 1)}|\n")
        cells = [report.cell(row.get(column)) for column in MARKDOWN]
        file.write(f"| {section} | {' | '.join(cells)} |\n")
