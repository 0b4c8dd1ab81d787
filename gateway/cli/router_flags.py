"""The flags of `penstock router train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from backend.encoder.chosen import add_encoder_flags

DESCRIPTION = """
Reads outcomes, one JSON object per line: {"prompt": TEXT, "scores": {MODEL: 0..1}}, and writes weights that
predict how much better one model answers a prompt than another. No text is in the weights. A policy names the
file as the `estimate` of a `choose`. With both --data and --log, your own traffic counts several times.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags and the description."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add("--data", type=Path, nargs="+", default=[], metavar="FILE", help="outcomes, JSON lines or .gz")
    add(
        "--log",
        type=Path,
        metavar="FILE",
        help="a decision log with texts (`observability.decision_texts`) and labels of shadows and feedback",
    )
    add("--out", type=Path, required=True, metavar="FILE.safetensors")
    add("--weak", metavar="MODEL", help="default: the one with the lowest mean score")
    add("--strong", metavar="MODEL", help="default: the one with the highest mean score")
    add(
        "--pair",
        action="append",
        default=[],
        metavar="SOURCE=WEAK,STRONG",
        help="for outcomes of this `source`; may be repeated; other sources are left out then",
    )
    add(
        "--form",
        choices=("words", "blend", "domains"),
        default="words",
        help="words: needs only the text, for prompts like those in the data; blend: sentence vectors "
        "too; "
        "domains: what `signals.domain` reads, from the tasks and sources of the outcomes",
    )
    add("--threads", type=int, help="of the encoder; default: one per core")
    add_encoder_flags(parser)
