"""Logging of our processes: one line per event on stderr, never prompt text or secrets."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging() -> None:
    """Configure the root logger of this process."""
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    for name in ("httpx", "httpx2"):  # they log each URL: of a passed-through path, the caller's words
        logging.getLogger(name).setLevel(logging.WARNING)
