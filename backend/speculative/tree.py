"""Trees of drafts: which way the model goes through one, and what is true of trees and chains alike.

A chain of drafts is a list of tokens. A tree costs as many tokens as it has nodes and gains as many as its
deepest accepted node lies deep: lengths are depths wherever they are chosen, counted or learned from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from backend.types import Draft, DraftTree, tree_depths


def accepted_nodes(tokens: Sequence[int], parents: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The nodes that the model draws itself, from the root on.

    `drawn[0]` was drawn behind the root, `drawn[i + 1]` behind node i. The path ends where no child equals
    the draw.
    """
    path: list[int] = []
    here = -1
    for node, parent in enumerate(parents):
        if parent == here and tokens[node] == drawn[here + 1]:
            path.append(node)
            here = node
    return path


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """For each node the tokens on the way to it, its own the last."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return found


def depth_of(draft: Draft) -> int:
    """Most tokens in a row."""
    return draft.depth if isinstance(draft, DraftTree) else len(draft)


def level_sizes(draft: Draft) -> list[int]:
    """How many tokens lie at each depth."""
    if not isinstance(draft, DraftTree):
        return [1] * len(draft)
    counts = Counter(tree_depths(draft.parents))
    return [counts[depth] for depth in range(1, draft.depth + 1)]


def first_tokens(draft: Draft) -> tuple[int, ...]:
    """The guesses at the very next token."""
    if isinstance(draft, DraftTree):
        return tuple(token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent < 0)
    return tuple(draft[:1])


def shorten(draft: Draft, depth: int) -> Draft:
    """At most so many tokens in a row; a tree that does not branch becomes a chain."""
    if not isinstance(draft, DraftTree):
        return draft[:depth]
    short = draft.cut(depth, len(draft))
    return list(short.tokens) if short.is_chain else short
