from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.estimate.features import NUM_BUCKETS, word_buckets


def buckets(text: str) -> list[int]:
    return [int(bucket) for bucket in word_buckets(text)[0]]


def test_a_number_counts_by_its_digits() -> None:
    assert buckets("What is 17 + 25?") == buckets("what is 99 + 10?")
    assert buckets("What is 17 + 25?") != buckets("What is 17 + 255?")


@given(st.text(max_size=300))
def test_buckets_are_distinct_and_in_range(text: str) -> None:
    found = buckets(text)
    assert found == sorted(set(found))
    assert all(0 <= bucket < NUM_BUCKETS for bucket in found)


def test_a_longer_list_of_the_same_words_differs() -> None:
    assert buckets("Sort a, b") != buckets("Sort a, b, a, b, a, b, a, b")


def test_the_vocabulary_has_words_alone() -> None:
    assert word_buckets("17 + 25?")[1].tolist() == []
    assert word_buckets("a b a")[1].tolist() == word_buckets("b, a 7")[1].tolist()
