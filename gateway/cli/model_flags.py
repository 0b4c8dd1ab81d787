"""The flags that add models to the policies of `serve` and `batch`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_model_flags(command: argparse.ArgumentParser) -> None:
    """Declare `--policies`, `--model`, `--upstream` and `--only`."""
    command.add_argument(
        "--policies", type=Path, metavar="DIR", help="policy folder, default $PENSTOCK_POLICIES"
    )
    command.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=CHECKPOINT_DIR",
        help="serve a checkpoint in Hugging Face format; may be repeated",
    )
    command.add_argument(
        "--upstream",
        action="append",
        default=[],
        metavar="NAME=BASE_URL[#MODEL]",
        help="add a model of an OpenAI-compatible API; MODEL is its name there; a known service such as "
        "ollama may stand for its BASE_URL; may be repeated",
    )
    command.add_argument(
        "--only",
        action="store_true",
        help="serve the models of --model and --upstream alone, without those that ship with Penstock",
    )
