"""The trees that are built are the best of their size, by brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.speculative.tree import paths
from backend.speculative.tree_building import TreeBudget, best_nodes, product_tree
from backend.types import DraftTree

LEAST = 0.06

Levels = list[list[float]]


@st.composite
def levels(draw: st.DrawFn) -> Levels:
    """Probabilities of three guesses at each of some tokens, best first."""
    guess = st.floats(0.01, 0.6)
    return [sorted((draw(guess) for _ in range(3)), reverse=True) for _ in range(draw(st.integers(1, 4)))]


def reached(path: tuple[int, ...], found: Levels) -> float:
    """How likely every rank of a path is right."""
    return math.prod(found[level][rank] for level, rank in enumerate(path))


@settings(max_examples=40, deadline=None)
@given(found=levels(), num_nodes=st.integers(1, 30))
def test_a_product_tree_has_the_likeliest_paths(found: Levels, num_nodes: int) -> None:
    logs = [[math.log(p) for p in level] for level in found]
    tree = product_tree([[0, 1, 2]] * len(found), logs, num_nodes)
    every = [path for depth in range(1, len(found) + 1) for path in itertools.product(range(3), repeat=depth)]
    best = sorted((reached(path, found) for path in every), reverse=True)
    wanted = [p for i, p in enumerate(best[:num_nodes]) if i == 0 or p >= LEAST]
    got = [reached(path, found) for path in paths(tree.tokens, tree.parents)]
    assert got == pytest.approx(wanted)
    assert len(set(paths(tree.tokens, tree.parents))) == len(tree)


def test_sure_guesses_make_a_chain() -> None:
    sure = [[0.0, -9.0], [0.0, -9.0], [0.0, -9.0]]
    assert product_tree([[5, 1], [6, 2], [7, 3]], sure, 9) == DraftTree((5, 6, 7), (-1, 0, 1))


def test_candidates_are_taken_by_their_whole_path() -> None:
    tokens, parents = [5, 6, 7, 8, 9], [-1, -1, 0, 0, 1]
    logprobs = [math.log(p) for p in (0.6, 0.4, 0.3, 0.01, 0.39)]
    assert best_nodes(tokens, parents, logprobs, 9) == DraftTree((5, 6, 9, 7), (-1, -1, 1, 0))
    assert best_nodes(tokens, parents, logprobs, 2) == DraftTree((5, 6), (-1, -1))


def test_of_equal_candidates_parents_come_first() -> None:
    assert best_nodes([5, 6, 7], [-1, 0, 1], [0.0, 0.0, 0.0], 2) == DraftTree((5, 6), (-1, 0))


def test_the_best_guess_is_given_however_unlikely() -> None:
    assert product_tree([[5, 6]], [[-9.0, -9.5]], 4) == DraftTree((5,), (-1,))
    assert best_nodes([5, 6], [-1, -1], [-9.0, -9.5], 4) == DraftTree((5,), (-1,))


def test_a_budget_shrinks_with_the_depth() -> None:
    budget = TreeBudget(num_nodes=12, depth=4)
    assert [budget.of(depth) for depth in (1, 2, 3, 4, 5)] == [3, 6, 9, 12, 15]
    assert TreeBudget(num_nodes=2, depth=4).of(4) == 4
