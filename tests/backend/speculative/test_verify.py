from __future__ import annotations

import random

from backend.speculative.verify import num_accepted, verify


def test_the_longest_start_that_was_drawn_is_accepted() -> None:
    assert num_accepted([5, 6, 7], [5, 6, 7]) == 3
    assert num_accepted([5, 6, 7], [5, 9, 7]) == 1
    assert num_accepted([5], [6]) == 0
    assert num_accepted([], []) == 0


def test_each_chunk_gets_its_accepted_drafts_and_one_draw_more() -> None:
    drafts = [[1, 2], [], [3, 4], [5]]
    drawn = [1, 2, 30, 40, 3, 50, 60, 70, 80]
    verdict = verify(drafts, drawn)
    assert verdict.token_ids == [30, 40, 50, 70]
    assert verdict.accepted == {0: [1, 2], 2: [3]}
    assert verdict.first == [0, 3, 4, 7] and verdict.last == [2, 3, 5, 7]


def test_the_output_is_what_a_model_says_without_drafts() -> None:
    rng = random.Random(3)
    for _ in range(200):
        script = [rng.randrange(3) for _ in range(40)]
        tokens: list[int] = []
        while len(tokens) < 30:
            draft = [rng.randrange(3) for _ in range(rng.randrange(5))]
            # What follows a wrong draft depends on it: only draws up to the first wrong one are the script's.
            right = num_accepted(draft, script[len(tokens) :])
            drawn = script[len(tokens) : len(tokens) + right + 1] + [9] * (len(draft) - right)
            verdict = verify([draft], drawn)
            tokens += [*verdict.accepted.get(0, []), verdict.token_ids[0]]
        assert tokens == script[: len(tokens)]
