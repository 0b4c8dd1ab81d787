from __future__ import annotations

import random

import pytest

from backend.speculative.automaton import ROOT, SuffixAutomaton


@pytest.mark.parametrize("alphabet", [1, 2, 4, 30])
def test_matches_are_the_longest_and_really_there(alphabet: int) -> None:
    rng = random.Random(alphabet)
    automaton = SuffixAutomaton()
    text = [rng.randrange(alphabet) for _ in range(120)]
    for token in text:
        automaton.append(token)
    assert len(automaton.moves) <= 2 * len(text) + 1
    state, length, read = ROOT, 0, []
    for _ in range(300):
        token = rng.randrange(alphabet + 1)
        read.append(token)
        state, length = automaton.follow(state, length, token)
        assert length == longest_known_end(text, read)
        end = automaton.ends[state]
        assert length == 0 or text[end - length : end] == read[-length:]


def longest_known_end(text: list[int], read: list[int]) -> int:
    length = 0
    for n in range(1, min(len(text), len(read)) + 1):
        if any(text[i : i + n] == read[-n:] for i in range(len(text) - n + 1)):
            length = n
        else:
            break
    return length
