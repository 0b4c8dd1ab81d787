"""Images, seconds and tokens of an upstream's other answers, in whatever pieces they come."""

from __future__ import annotations

import json

import pytest

from gateway.answer import Usage
from gateway.endpoints.passthrough_cost import MAX_COUNTED_BYTES, PassthroughCost
from policies.prices import Price

PRICE = Price(
    input_usd_per_million_tokens=1e6,
    output_usd_per_million_tokens=2e6,
    cached_input_usd_per_million_tokens=0,
    request_usd=100,
    image_usd=1000,
    second_usd=10_000,
)
PICTURES = {
    "data": [{"b64_json": "QUJD" * 20, "revised_prompt": 'say "b64_json": "x"'}, {"url": "http://h/1"}]
}


def usd(
    answer: object,
    *,
    size: int = 1 << 20,
    status: int = 200,
    method: str = "POST",
    media_type: str = "application/json; charset=utf-8",
    price: Price | None = PRICE,
) -> float:
    raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    cost = PassthroughCost(price, method)
    cost.begin(status, media_type)
    for start in range(0, len(raw), size):
        cost.add(raw[start : start + size])
    return cost.charged(cost.usage).usd


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"text": "hello"}, 100),
        (PICTURES, 100 + 2000),
        ({"data": [{"url": None, "b64_json": "QUJD"}, {"url": "http://h/1", "b64_json": None}]}, 2100),
        ({"data": []}, 100),
        ({"text": "x", "usage": {"type": "duration", "seconds": 9}}, 100 + 90_000),
        ({"text": "x", "duration": 8.5}, 100 + 85_000),
        ({"id": "video_1", "status": "queued", "seconds": "4"}, 100 + 40_000),
        ({"seconds": "many"}, 100),
        ({"seconds": -4}, 100),
        ({"duration": 1e300}, 100),
        ({"duration": None, "usage": None}, 100),
        ({"usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}}, 100 + 10 + 10),
        (
            {"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}},
            100 + 6,
        ),
        ([1, 2], 100),
        (b'{"usage": ', 100),
        (b"", 100),
        (b"\xff\xfe", 100),
    ],
)
def test_what_it_tells_is_paid(answer: object, expected: float, size: int) -> None:
    assert usd(answer, size=size) == expected


def test_images_of_a_large_answer_are_counted() -> None:
    data = [{"b64_json": "QUJD" * (MAX_COUNTED_BYTES // 4)} for _ in range(3)]
    assert usd({"data": data}, size=65_536) == 100 + 3000


def test_what_is_no_json_costs_its_request() -> None:
    assert usd(b'{"url": "x"}' * 9, media_type="audio/mpeg") == 100


def test_reading_errors_and_models_without_a_price_cost_nothing() -> None:
    assert usd(PICTURES, method="GET") == usd(PICTURES, method="DELETE") == 0
    assert usd(PICTURES, status=400) == usd(PICTURES, price=None) == 0
    cost = PassthroughCost(PRICE, "POST")
    assert cost.charged(cost.usage).usd == 0  # nothing has arrived


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("DELETE", 200), ("POST", 400)])
def test_tokens_of_what_is_read_again_and_of_errors_count_in_no_limit(method: str, status: int) -> None:
    cost = PassthroughCost(PRICE, method)
    cost.begin(status, "application/json")
    cost.add(b'{"usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}}')
    assert cost.charged(cost.usage).usage == Usage()


def test_a_cut_answer_pays_what_had_arrived() -> None:
    cost = PassthroughCost(PRICE, "POST")
    cost.begin(200, "application/json")
    cost.add(json.dumps(PICTURES).encode()[:60])
    assert cost.usage is None and cost.charged(None).usd == 100 + 1000
