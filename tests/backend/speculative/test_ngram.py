from __future__ import annotations

import random

from backend.speculative.ngram import LONGEST_MATCH, SHORTEST_MATCH, NgramDrafter, NgramIndex
from tests.backend.speculative.sequences import running


def test_copies_what_followed_the_longest_match() -> None:
    sequence = running([1, 2, 3, 4, 50, 60, 9, 3, 4, 70, 80, 9], [1, 2, 3, 4])
    assert NgramDrafter().propose([sequence], [2]) == [[50, 60]], "four tokens say more than two"
    sequence = running([1, 2, 3, 4, 50, 60, 9, 3, 4, 70, 80, 9], [5, 3, 4])
    assert NgramDrafter().propose([sequence], [2]) == [[70, 80]], "the newest of equals"


def test_new_text_and_single_tokens_give_no_draft() -> None:
    assert NgramDrafter().propose([running([1, 2, 3], [9, 3])], [4]) == [[]]


def test_a_loop_goes_on_past_its_end() -> None:
    assert NgramDrafter().propose([running([7, 8, 9, 7, 8, 9], [7, 8])], [7]) == [[9, 7, 8, 9, 7, 8, 9]]


def test_growing_by_pieces_finds_what_a_search_finds() -> None:
    rng = random.Random(2)
    tokens: list[int] = [rng.randrange(4) for _ in range(5)]
    index = NgramIndex()
    for _ in range(150):
        assert index.continuation(tokens, 1) == searched(tokens)
        tokens += [rng.randrange(4) for _ in range(rng.randrange(1, 4))]


def searched(tokens: list[int]) -> list[int]:
    for n in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                return tokens[end : end + 1]
    return []


def test_forgets() -> None:
    drafter, sequence = NgramDrafter(), running([1, 2, 1, 2], [1, 2])
    drafter.propose([sequence], [1])
    drafter.forget(sequence)
    drafter.forget(sequence)
    assert not drafter._indexes
