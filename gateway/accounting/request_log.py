"""The log line of each request that has ended, for the format `json`."""

from __future__ import annotations

import logging

import msgspec

from gateway.accounting.receipt import Receipt

logger = logging.getLogger("penstock.request")


def log_request(receipt: Receipt) -> None:
    """Write what the request came to."""
    logger.info("request ended", extra={"fields": msgspec.structs.asdict(receipt)})
