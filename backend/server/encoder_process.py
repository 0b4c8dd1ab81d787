"""The encoder process: `python -m backend.server.encoder_process` (see serve.py). Torch only where needed."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

from backend.digests import check_digests, check_listed
from backend.encoder.checkpoint import Reading, read_checkpoint
from backend.encoder.model import SentenceEncoder
from backend.server.encoder_messages import EncoderConfig
from backend.server.encoder_server import EncoderServer
from backend.server.serve import report_progress, run_process


def load(config: EncoderConfig) -> Callable[[socket.socket], EncoderServer]:
    """Load the encoder and run it once. Raises CheckpointError."""
    reading = Reading(config.prompt, config.prompt_name, config.pooling)
    if config.sha256:
        check_listed(read_checkpoint(config.checkpoint, reading).modules.weights, config.sha256)
        check_digests(config.sha256)
    encoder = SentenceEncoder.from_checkpoint(
        config.checkpoint, config.num_threads, is_int8=config.dtype == "int8", reading=reading
    )
    report_progress("warming_up", 1.0)
    encoder.embed(encoder.tokenize(["warm up"]))
    return lambda listener: EncoderServer(encoder, config, listener)


def main(arguments: list[str] | None = None) -> int:
    """Load, serve, drain. Returns the exit code."""
    return run_process("encoder", EncoderConfig, load, arguments)


if __name__ == "__main__":
    sys.exit(main())
