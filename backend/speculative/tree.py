"""Trees of drafts: which nodes make one, which way the model goes through it, and what chains and trees
share.

A chain is a list of tokens. A tree costs as many tokens as it has nodes and gains as many as its deepest
accepted node is deep: lengths are depths wherever they are chosen, counted or learned from. A node is
reached when it and all before it are right: its probability is the product along its path, never greater
than its parent's. Taking nodes by that product gives the best tree of a size, parents first (after EAGLE-2,
arXiv 2406.16858).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from backend.speculative import MIN_NODE_PROBABILITY
from backend.types import Draft, DraftTree, tree_depths

MIN_NODE_LOGPROB = math.log(MIN_NODE_PROBABILITY)


def accepted_nodes(tokens: Sequence[int], parents: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The nodes that the model draws itself, from the root on.

    `drawn[0]` was drawn after the root, `drawn[i + 1]` after node i. The path ends where no child equals the
    draw.
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
    """Tokens at each depth."""
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
    """At most `depth` tokens in a row; a tree that does not branch becomes a chain."""
    if not isinstance(draft, DraftTree):
        return draft[:depth]
    short = draft.cut(depth, len(draft))
    return list(short.tokens) if short.is_chain else short


@dataclass(frozen=True, slots=True)
class TreeBudget:
    """How many nodes trees may have: `num_nodes` when they are `depth` deep, else in proportion."""

    num_nodes: int
    depth: int

    def of(self, depth: int) -> int:
        """Nodes of a tree of this depth: a chain at least."""
        return max(depth, -(-self.num_nodes * depth // self.depth))


def best_nodes(
    tokens: Sequence[int], parents: Sequence[int], logprobs: Sequence[float], num_nodes: int
) -> DraftTree:
    """The best tree among candidates, each after its parent, with the log-probability of its whole path."""
    # Sorting is stable: of equals the parent stays first.
    order = sorted(range(len(tokens)), key=lambda node: -logprobs[node])[:num_nodes]
    kept = [node for i, node in enumerate(order) if i == 0 or logprobs[node] >= MIN_NODE_LOGPROB]
    number = {-1: -1} | {node: i for i, node in enumerate(kept)}
    return DraftTree(tuple(tokens[node] for node in kept), tuple(number[parents[node]] for node in kept))
