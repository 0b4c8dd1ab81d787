"""Unknown fields are refused, or collected with their places and left out."""

from __future__ import annotations

import msgspec
import pytest

from gateway.errors import InvalidRequest
from gateway.requests.parse import typed, typed_at
from gateway.requests.unknown_fields import MAX_COLLECTED, collecting, names, note


class _Inner(msgspec.Struct, forbid_unknown_fields=True):
    a: int


class _Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: _Inner
    many: list[_Inner] = []


BODY = {"inner": {"a": 1, "x": 1}, "many": [{"a": 2}, {"a": 3, "y": 2}], "z": 3}


def test_they_are_collected_wherever_they_are() -> None:
    with collecting() as found:
        read = typed_at(BODY, _Outer, "tools[0]")
    assert (read.inner.a, [each.a for each in read.many]) == (1, [2, 3])
    assert {error.param for error in found} == {"tools[0].inner.x", "tools[0].many[1].y", "tools[0].z"}
    assert sorted(names(found)) == ["tools.inner.x", "tools.many.y", "tools.z"]
    assert BODY["inner"] == {"a": 1, "x": 1}


def test_they_are_refused_otherwise_and_other_faults_always() -> None:
    with pytest.raises(InvalidRequest, match="Unknown parameter"):
        typed(BODY, _Outer)
    with collecting(), pytest.raises(InvalidRequest, match="integer"):
        typed({"inner": {"a": "x", "b": 1}}, _Outer)
    with pytest.raises(InvalidRequest):
        note("x", ())


def test_they_are_bounded() -> None:
    with collecting() as found, pytest.raises(InvalidRequest):
        typed({"a": 1} | {f"x{number}": 1 for number in range(MAX_COLLECTED + 1)}, _Inner)
    assert len(found) == MAX_COLLECTED
