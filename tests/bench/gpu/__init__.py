"""The step on a GPU: values, tokens, draws and times against their targets; `--plan` needs no GPU.

The plan prints each part's bytes, FLOPs, launches and programs, its floor on a card and its target.
"""

from __future__ import annotations

import argparse

from tests.bench import report
from tests.bench.gpu.cards import CARDS
from tests.bench.gpu.shapes import MODELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench gpu`."""
    parser.add_argument("--plan", action="store_true", help="print the plan, without a GPU")
    parser.add_argument("--card", choices=CARDS, default="h100", help="of the plan (default h100)")
    parser.add_argument("--model", choices=MODELS, help="of the plan (default: those of the targets)")


def run(arguments: argparse.Namespace) -> None:
    """Plan, or measure."""
    from tests.bench.gpu import plan

    card = CARDS[arguments.card]
    sections, steps = plan.rows(arguments.model, card)
    report.show(f"gpu · a layer's parts on {card.name}", sections, arguments.json)
    report.show(f"gpu · whole steps on {card.name}", steps, arguments.json)
