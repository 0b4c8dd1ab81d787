"""The step on a GPU: values, tokens, draws and times against their targets; `--plan` needs no GPU.

The plan prints each part's bytes, FLOPs, launches and programs, its floor on a card and its target. Without
it everything is measured, in five minutes at most: compile; values of all kernels in all dtypes; tokens of
tiny models of all families, equal to the CPU's; draws; kernels, attention against the bandwidth of a copy;
parts, every section of the plan in a step; step, tokens per second of 8B models with random weights. Records
go to results/. torch, triton, numpy, numba, safetensors and msgspec are enough.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.gpu.cards import CARDS, Card
from tests.bench.gpu.shapes import MODELS

RESULTS = Path(__file__).parents[1] / "results"
NAMES = ("compile", "values", "tokens", "draws", "kernels", "parts", "step")
NEEDED = ("torch", "triton", "numpy", "numba", "safetensors", "msgspec")
LIMIT_S = {"compile": 40, "values": 70, "tokens": 40, "draws": 15, "kernels": 25, "parts": 35, "step": 75}
"""Five minutes together."""
CPU_FACTOR = 10  # a CPU is given more time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench gpu`."""
    parser.add_argument("--plan", action="store_true", help="print the plan, without a GPU")
    parser.add_argument("--card", choices=CARDS, help="default: the one that is here, else h100")
    parser.add_argument("--model", choices=MODELS, help="of the plan (default: those of the targets)")
    parser.add_argument("--only", default=",".join(NAMES), help="sections (default %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: small, to try it out")
    parser.add_argument(
        "--results", type=Path, help=f"folder of the records (default {RESULTS.name}/ beside the benchmarks)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Plan, or measure; exits with 1 if a check fails or a section breaks off."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"gpu: {', '.join(missing)} cannot be imported; install what is missing")
    if arguments.plan:
        _plan(arguments)
        return
    unknown = set(arguments.only.split(",")) - set(NAMES)
    if unknown:
        sys.exit(f"gpu: --only {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    card, name = _card(arguments)
    folder = arguments.results or (RESULTS if arguments.device == "cuda" else Path(arguments.dir, "results"))
    found = [
        _measure(section, arguments, card, folder / f"{name}.json")
        for section in NAMES
        if section in arguments.only.split(",")
    ]
    if not all(found):
        sys.exit(1)


def _plan(arguments: argparse.Namespace) -> None:
    from tests.bench.gpu import plan

    card = CARDS[arguments.card or "h100"]
    sections, steps = plan.rows(arguments.model, card)
    report.show(f"gpu · a layer's parts on {card.name}", sections, arguments.json)
    report.show(f"gpu · whole steps on {card.name}", steps, arguments.json)


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


def _measure(section: str, arguments: argparse.Namespace, card: Card, results: Path) -> bool:
    """Run a section in a process of its own, show and keep its lines; whether all is right.

    An error on a GPU ends everything that its process could do there.
    """
    command = [sys.executable, "-m", "tests.bench.gpu", section, arguments.device, card.name]
    variables = {"TRITON_DEFAULT_FP_FUSION": "1", **os.environ}
    begin, reason = time.monotonic(), ""
    limit_s = LIMIT_S[section] * (CPU_FACTOR if arguments.device == "cpu" else 1)
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False, timeout=limit_s
        )
        shown = done.stdout
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    except subprocess.TimeoutExpired as error:
        shown, reason = _text(error.stdout), f"took longer than {limit_s} s"
    rows: list[dict[str, Any]] = [json.loads(line) for line in shown.splitlines() if line.endswith("}")]
    is_right = not reason and all(row.get("check") != "FAILED" for row in rows)
    took_s = time.monotonic() - begin
    report.show(f"gpu · {section} on {results.stem} · {took_s:.0f} s", rows, arguments.json)
    if reason:
        print(f"  BROKE OFF: {reason}")
    record = {"section": section, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "seconds": took_s}
    record |= {"machine": report.machine(), "is_right": is_right, "reason": reason, "rows": rows}
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return is_right


def _text(shown: bytes | str | None) -> str:
    return shown.decode() if isinstance(shown, bytes) else shown or ""
