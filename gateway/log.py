"""Logging of our processes: one line per event on stderr, never prompt text or secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from backend.server.json_log import TEXT_FORMAT as FORMAT
from backend.server.json_log import JsonFormatter, configure_root
from policies.redaction import hidden


def configure_logging(log_format: str = "text") -> None:
    """Configure the root logger of this process. `log_format`: one of LOG_FORMATS."""
    configure_root(log_format, WithoutSecrets(FORMAT), JsonFormatter(without_hidden))
    for name in ("httpx", "httpx2"):  # they log each URL: of a passed-through path, the caller's words
        logging.getLogger(name).setLevel(logging.WARNING)


def hide(secrets: Iterable[str]) -> None:
    """Show these values in no line of this process's log from now on."""
    _secrets.update(secrets)


def without_hidden(text: str) -> str:
    """The text without the values that are hidden."""
    return hidden(text, _secrets)


_secrets: set[str] = set()


class WithoutSecrets(logging.Formatter):
    """Also of tracebacks, whose errors may quote what they could not use."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, as its line or lines."""
        return without_hidden(super().format(record))
