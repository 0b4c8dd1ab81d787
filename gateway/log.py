"""Logging of our processes: one line per event on stderr, never prompt text or secrets."""

from __future__ import annotations

import logging


class _WithoutQuery(logging.Filter):
    """Cuts the query string off the path in uvicorn's access log: clients put keys and text there."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, version, status = record.args
            record.args = (client, method, str(path).partition("?")[0], version, status)
        return True


FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging() -> None:
    """Configure the root logger of this process."""
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    logging.getLogger("uvicorn.access").addFilter(_WithoutQuery())
