from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy import float16, float32

from cache import inverted_file, vector_index
from cache.vector_index import VectorIndex
from tests.cache.entries import key_of, unit

_STEPS = st.lists(
    st.tuples(st.sampled_from("add remove".split()), st.integers(0, 9), st.sampled_from([b"p", b"q"]))
)


@given(_STEPS, st.integers(0, 9))
def test_a_search_is_that_of_brute_force(steps: list[tuple[str, int, bytes]], asked: int) -> None:
    check_against_brute_force(steps, asked)


@given(_STEPS, st.integers(0, 9))
def test_a_search_in_a_large_partition_too(steps: list[tuple[str, int, bytes]], asked: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_index, "MAX_MATRIX_ROWS", 2)
        patch.setattr(inverted_file, "ONE_LIST_ROWS", 3)
        patch.setattr(inverted_file, "GROWTH", 2)
        patch.setattr(inverted_file, "ROWS_PER_LIST", 2)
        check_against_brute_force(steps, asked)


def check_against_brute_force(steps: list[tuple[str, int, bytes]], asked: int) -> None:
    index = VectorIndex()
    kept: dict[tuple[bytes, int], None] = {}
    for step, number, partition in steps:
        if step == "add":
            index.add(partition, key_of(number), unit(number).astype(float16))
            kept[partition, number] = None
        else:
            index.remove(partition, key_of(number))
            kept.pop((partition, number), None)
    for partition in (b"p", b"q"):
        cosines = {
            n: float(unit(n).astype(float16).astype(float32) @ unit(asked)) for p, n in kept if p == partition
        }
        expected = sorted(cosines, key=lambda n: -cosines[n])[:5]
        found = index.search(partition, unit(asked), 5)
        assert [each.key for each in found] == [key_of(n) for n in expected]
        assert np.allclose([each.cosine for each in found], [cosines[n] for n in expected], atol=1e-5)


def test_adding_a_key_again_replaces_its_vector() -> None:
    index = VectorIndex()
    index.add(b"p", key_of(1), unit(1).astype(float16))
    index.add(b"p", key_of(1), unit(2).astype(float16))
    (found,) = index.search(b"p", unit(2), 5)
    assert found.key == key_of(1) and found.cosine > 0.999


def test_an_unknown_partition_has_nothing() -> None:
    assert VectorIndex().search(b"p", unit(1), 5) == []
