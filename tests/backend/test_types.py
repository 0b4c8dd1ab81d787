"""Draft trees: a cut tree is a tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.types import DraftTree, Request, SamplingParams, ScheduledChunk, Sequence, tree_depths


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    size = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(size))
    return DraftTree(tuple(draw(st.integers(0, 3)) for _ in range(size)), parents)


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@given(tree=trees(), max_depth=st.integers(0, 6), max_nodes=st.integers(0, 12))
def test_cut_drops_deep_nodes_and_then_the_last_ones(tree: DraftTree, max_depth: int, max_nodes: int) -> None:
    short = tree.cut(max_depth, max_nodes)
    assert paths(short) == [path for path in paths(tree) if len(path) <= max_depth][:max_nodes]
    assert short.depth == max(map(len, paths(short)), default=0)


def test_is_chain_and_depths() -> None:
    assert DraftTree((7, 8, 9), (-1, 0, 1)).is_chain and DraftTree((), ()).is_chain
    assert not DraftTree((7, 8, 9), (-1, 0, 0)).is_chain
    assert tree_depths((-1, -1, 1, 2, 0)) == (1, 1, 2, 3, 2)


@pytest.mark.parametrize("parents", [(0,), (-2,), (-1, 2, 0)])
def test_a_parent_precedes_its_children(parents: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="precedes"):
        DraftTree((1,) * len(parents), parents)


def test_draft_depth_of_a_chunk() -> None:
    request = Request(request_id="r", prompt_token_ids=[1], params=SamplingParams(max_tokens=9))
    sequence = Sequence(request, [1], 1)
    assert ScheduledChunk(sequence, 0, 1).draft_depth == 0
    assert ScheduledChunk(sequence, 0, 4, (5, 6, 7)).draft_depth == 3
    assert ScheduledChunk(sequence, 0, 4, (5, 6, 7), (-1, -1, 0)).draft_depth == 2
