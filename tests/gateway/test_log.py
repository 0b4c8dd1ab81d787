"""What reaches the log."""

from __future__ import annotations

import logging

import pytest

from gateway.log import configure_logging


def test_the_access_log_shows_no_query_string(caplog: pytest.LogCaptureFixture) -> None:
    access = logging.getLogger("uvicorn.access")
    before = list(access.filters)
    try:
        configure_logging()
        with caplog.at_level(logging.INFO, "uvicorn.access"):
            access.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/v1/models?key=secret", "1.1", 200)
            access.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/v1/models", "1.1", 200)
    finally:
        access.filters[:] = before
    assert [record.getMessage() for record in caplog.records] == [
        '1.2.3.4:5 - "GET /v1/models HTTP/1.1" 200'
    ] * 2
