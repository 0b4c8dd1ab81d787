"""The line of a request has all that its receipt has."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest

from backend.server.json_log import JsonFormatter
from gateway.accounting.receipt import Receipt
from gateway.accounting.request_log import log_request


def test_the_line_has_each_field(caplog: pytest.LogCaptureFixture) -> None:
    empty = {each.name: _nothing(each.type) for each in msgspec.structs.fields(Receipt)}
    receipt = Receipt(**empty | {"failed_models": ("a", "b"), "cost_usd": 0.25, "tenant": "team"})
    with caplog.at_level(logging.INFO):
        log_request(receipt)
    [record] = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert line["logger"] == "penstock.request"
    assert {name: line[name] for name in receipt.__struct_fields__} == json.loads(
        msgspec.json.encode(receipt)
    )


def _nothing(kind: type) -> object:
    return kind() if kind in (str, int, float, bool) else () if "tuple" in str(kind) else None
