"""Trains everything that ships: `python -m backend.pico.train --all --run-dir DIR [--workers 2]`.

Each stage is a command with its own directory. When a killed recipe is restarted, finished stages are skipped
and the interrupted one resumes from its checkpoint.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.parent_death_signal import die_with

LOG = logging.getLogger("backend.pico.recipe")
DONE = "done"  # marks a finished stage
WEIGHTS = Path(__file__).with_name("weights")
DRAFTER_STEPS = {"draft": 3000, "medusa": 1900, "eagle": 1700, "mixture_of_attentions": 3400}
ADAPTER_STEPS = {
    "json": 910,
    "si": 1120,
    "german": 610,
    "formal": 600,
    "codewords": 1260,
    "json-large": 1760,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One command; in its arguments "{runs}" is the directory of all stages and "{own}" its own."""

    name: str
    module: str
    arguments: tuple[str, ...]


def _member(name: str, model: str, steps: int, decay_steps: int, *more: str) -> Stage:
    schedule = ("--steps", str(steps), "--decay-steps", str(decay_steps))
    return Stage(name, "train", ("--model", model, "--run-dir", "{own}", *schedule, *more))


def _export(model: str) -> Stage:
    return Stage(f"{model}-export", "export", ("--model", model, "--run-dir", f"{{runs}}/{model}"))


def _drafter(name: str) -> Stage:
    arguments = ("--drafter", name, "--target", str(WEIGHTS / "pico-large"), "--run-dir", "{own}")
    return Stage(f"drafter-{name}", "drafters.train", (*arguments, "--steps", str(DRAFTER_STEPS[name])))


def _adapter(name: str) -> tuple[Stage, Stage]:
    train = ("--name", name, "--run-dir", "{own}", "--steps", str(ADAPTER_STEPS[name]))
    export = ("--name", name, "--run-dir", f"{{runs}}/adapter-{name}")
    return (
        Stage(f"adapter-{name}", "adapters.train", train),
        Stage(f"adapter-{name}-export", "adapters.export", export),
    )


STAGES: tuple[Stage, ...] = (
    _member("pico-base", "pico-base", 6000, 3000),
    _member("pico-small", "pico-small", 4300, 4300, "--parent", "{runs}/pico-base"),
    _export("pico-small"),
    # Two runs from the same weights, with the same data and steps, to measure the effect of HyperMoE.
    _member("pico-large-hyper", "pico-large", 300, 300, "--parent", "{runs}/pico-base", "--hyper"),
    _member("pico-large-plain", "pico-large", 300, 300, "--parent", "{runs}/pico-base"),
    _member("pico-large", "pico-large", 6100, 6100, "--parent", "{runs}/pico-large-plain"),
    _export("pico-large"),
    *(_drafter(name) for name in DRAFTER_STEPS),
    *(stage for name in ADAPTER_STEPS for stage in _adapter(name)),
)


def run(folder: Path, workers: int, device: str, stages: Sequence[Stage] = STAGES) -> None:
    """Run the unfinished stages. Raises CalledProcessError if one fails."""
    for stage in stages:
        own = folder / stage.name
        if (own / DONE).exists():
            LOG.info("%s is finished", stage.name)
            continue
        own.mkdir(parents=True, exist_ok=True)
        arguments = [argument.format(runs=folder, own=own) for argument in stage.arguments]
        if not stage.module.endswith("export"):
            arguments += ["--workers", str(workers), "--device", device]
        LOG.info("%s: python -m backend.pico.%s %s", stage.name, stage.module, " ".join(arguments))
        command = [sys.executable, "-m", f"backend.pico.{stage.module}", *arguments]
        subprocess.run(command, check=True, preexec_fn=die_with(os.getpid()))  # no threads here
        (own / DONE).touch()
