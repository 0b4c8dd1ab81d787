from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from guardrails.checks.ngrams import CHAR_ORDERS, NUM_BUCKETS, grams, sums

TABLE = np.random.default_rng(0).normal(size=(NUM_BUCKETS, 3)).astype(np.float32)


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
