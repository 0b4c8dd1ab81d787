"""Logging of our processes: one line per event on stderr, never prompt text or secrets."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging() -> None:
    """Configure the root logger of this process."""
    logging.basicConfig(level=logging.INFO, format=FORMAT)
