from __future__ import annotations

import msgspec
import pytest

from gateway.requests.integral_floats import with_integers


class Inner(msgspec.Struct):
    count: int


class Outer(msgspec.Struct):
    count: int | None = None
    ratio: float | int | None = None
    anything: object = None
    counts: list[list[int] | int] | None = None
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("count", 3.0, 3),
        ("count", -0.0, 0),
        ("count", 2.0**53, 2.0**53),
        ("ratio", 3.0, 3.0),
        ("anything", {"default": 1.0}, {"default": 1.0}),
        ("counts", [1.0, [2.0, 2.5]], [1, [2, 2.5]]),
        ("inner", {"count": 4.0, "unknown": 4.0}, {"count": 4, "unknown": 4.0}),
        ("inner", 4.0, 4.0),
        ("unknown", 4.0, 4.0),
    ],
)
def test_floats_change_only_where_an_integer_belongs(field: str, given: object, expected: object) -> None:
    body = {field: given}
    assert repr(with_integers(body, Outer)) == repr({field: expected})
    assert body == {field: given}
