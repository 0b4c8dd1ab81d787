"""The flags of `penstock eval route`."""

from __future__ import annotations

import argparse


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `eval route` beside those of `eval models`."""
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
