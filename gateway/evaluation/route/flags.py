"""The flags of `penstock eval route`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gateway.evaluation import flags
from gateway.evaluation.flags import ModelsPlan


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """A route between two models, and how all three are asked."""

    asking: ModelsPlan
    route: str
    weak: str
    strong: str
    estimate: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `eval models`, and beside them those of `eval route`."""
    flags.add_flags(parser)
    parser.description = (
        "Asks the test questions of pico through a running gateway: of the weak model, of the strong one "
        "and of a route between them. Compares accuracy and the work of the engines, question by question, "
        "with intervals, and draws what other thresholds would have given."
    )
    parser.set_defaults(concurrency=32)  # batches are full for every subject
    parser.add_argument("--route", default="auto", help="default auto")
    parser.add_argument("--weak", default="pico-small", metavar="MODEL")
    parser.add_argument("--strong", default="pico-large", metavar="MODEL")
    parser.add_argument("--estimate", default="builtin:pico", help="of the quality-per-cost curve")


def read_plan(options: argparse.Namespace) -> RoutePlan:
    """Validate the flags. Raises SettingsError."""
    asking = flags.read_plan(options)
    return RoutePlan(asking, options.route, options.weak, options.strong, options.estimate)
