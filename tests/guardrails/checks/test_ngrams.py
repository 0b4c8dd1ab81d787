from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from guardrails.checks.ngrams import BITS, CHAR_ORDERS, grams, sums

TABLE = np.random.default_rng(0).normal(size=(1 << BITS, 3)).astype(np.float32)


def test_kinds() -> None:
    found = [len(buckets) for buckets, _ in grams(["one two three"])]
    assert found == [*(len("one two three") - order + 1 for order in CHAR_ORDERS), 3, 2]


def test_case_and_digits_do_not_matter() -> None:
    assert np.array_equal(sums(["Call 123"], TABLE), sums(["call 987"], TABLE))


@given(st.lists(st.text(st.characters(codec=None), max_size=40), max_size=6))
def test_neighbours_do_not_matter(texts: list[str]) -> None:
    together = sums(texts, TABLE)
    assert together.shape == (len(texts), 3)
    for text, row in zip(texts, together, strict=True):
        assert np.allclose(sums([text], TABLE)[0], row, atol=1e-4)


def test_codes_and_numbers_are_all_the_same() -> None:
    texts = ["Answer request KEY-F", "Answer request KEY-A", "Answer request x_81", "Answer request 3.141"]
    found = sums(texts, TABLE)
    assert all(np.array_equal(found[0], row) for row in found)
    assert not np.array_equal(found[0], sums(["Answer request please"], TABLE)[0])


def test_a_small_table_has_the_first_bits() -> None:
    small = TABLE[: 1 << 10]
    shift = BITS - 10
    (buckets, _), *_ = grams(["abc"])
    assert np.allclose(sums(["abc"], small)[0] * np.sqrt(2), small[buckets[0] >> shift] + _word("abc", small))


def _word(text: str, table: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return table[list(grams([text]))[1][0][0] >> (BITS - 10)]
