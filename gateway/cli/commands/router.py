"""`penstock router`: trains what predicts which model a prompt needs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.late_parser import LateParser

DESCRIPTION = """
Reads outcomes, one JSON object per line: {"prompt": TEXT, "scores": {MODEL: 0..1}}, and writes weights that
predict how much better one model answers a prompt than another. No text is in the weights. A policy names the
file as the `estimate` of a `choose`. With both --data and --log, your own traffic counts several times.
"""


def add(commands: argparse._SubParsersAction[LateParser]) -> None:
    """Declare the actions."""
    router = commands.add_parser("router", help="train what predicts which model a prompt needs")
    router.set_defaults(run=run)
    kinds = router.add_subparsers(title="what to do", required=True, metavar="ACTION")
    train = kinds.add_parser("train", help="an estimate from outcomes", declare=_declare)
    train.set_defaults(needs=["semantic"])


def _declare(train: argparse.ArgumentParser) -> None:
    from gateway.evaluation.encoder_flags import add_encoder_flags

    train.description = DESCRIPTION
    arg = train.add_argument
    arg("--data", type=Path, nargs="+", default=[], metavar="FILE", help="outcomes, JSON lines or .gz")
    arg(
        "--log",
        type=Path,
        metavar="FILE",
        help="a decision log with texts (`observability.decision_texts`) and labels of shadows and feedback",
    )
    arg("--out", type=Path, required=True, metavar="FILE.safetensors")
    arg("--weak", metavar="MODEL", help="default: the one with the lowest mean score")
    arg("--strong", metavar="MODEL", help="default: the one with the highest mean score")
    arg(
        "--pair",
        action="append",
        default=[],
        metavar="SOURCE=WEAK,STRONG",
        help="for outcomes of this `source`; may be repeated; other sources are left out then",
    )
    arg(
        "--form",
        choices=("words", "blend", "domains"),
        default="words",
        help="words: needs only the text, for prompts like those in the data; blend: sentence vectors too; "
        "domains: what `signals.domain` reads, from the tasks and sources of the outcomes",
    )
    add_encoder_flags(train)


def run(options: argparse.Namespace) -> int:
    """Fit and write. Raises SettingsError."""
    from gateway.cli.train_router import train

    return train(options, sys.stdout)
