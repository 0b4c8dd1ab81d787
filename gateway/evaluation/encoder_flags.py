"""The flags of commands that embed texts: which encoder, and how many threads it takes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from backend.encoder import chosen
from backend.encoder.chosen import SHIPPED, ChosenEncoder
from gateway.evaluation.outputs import Outputs
from gateway.settings import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePlan:
    """What every evaluation is told that embeds texts itself; each adds its own."""

    encoder: ChosenEncoder = SHIPPED
    num_threads: int | None = None  # None: one per core
    outputs: Outputs = Outputs()


def add_encoder_flags(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    chosen.add_encoder_flags(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="of the encoder; default: one per core")


def read_threads(options: argparse.Namespace) -> int | None:
    """None for one per core. Raises SettingsError."""
    threads: int | None = options.threads
    if threads is not None and threads < 1:
        raise SettingsError(f"--threads {threads} must be 1 or more")
    return threads
