"""Signed reasoning goes through the messages of a chat unchanged."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.upstream.gemini.contents import SIGNATURE as GEMINI
from gateway.requests.reasoning_details import (
    OURS,
    REDACTED,
    REDACTED_BEDROCK,
    ReasoningBlock,
    details,
    read_blocks,
    signs_calls,
)


def test_blocks_come_back_as_they_were() -> None:
    blocks = [("hm", "signed"), ("", REDACTED + "data"), ("", GEMINI + "x")]
    found = details(blocks)
    assert found[1] == {"type": "reasoning.encrypted", "data": "data", "index": 1}
    assert read_blocks({"reasoning_details": found}, "messages[0]") == blocks
    assert details(blocks[2:], 2) == found[2:]


def test_what_is_not_signed_is_left_out() -> None:
    given = [{"type": "reasoning.summary", "summary": "hm"}, {"type": "reasoning.text", "text": "hm"}]
    assert read_blocks({"reasoning_details": given}, "messages[0]") == read_blocks({}, "messages[0]") == []


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("x", True),
        (REDACTED + "x", True),
        (REDACTED_BEDROCK + "x", False),
        (GEMINI + "x", False),
        ("new-api:x", False),
        (OURS, False),
    ],
)
def test_whose_a_block_is(signature: str, expected: bool) -> None:
    assert ReasoningBlock("", signature).is_anthropic == expected


@pytest.mark.parametrize(
    ("signature", "expected"),
    [(GEMINI + "x", True), ("new-api:x", True), ("x", False), (REDACTED + "x", False), (OURS + "x", False)],
)
def test_what_an_api_signs_of_its_calls_comes_back_whatever_is_shown(signature: str, expected: bool) -> None:
    assert signs_calls(signature) == expected


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("x", "messages[0].reasoning_details"),
        ([1], "messages[0].reasoning_details[0]"),
        ([{"type": "reasoning.text", "signature": 1}], "messages[0].reasoning_details[0].signature"),
    ],
)
def test_errors_name_the_place(given: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_blocks({"reasoning_details": given}, "messages[0]")
    assert caught.value.param == param
