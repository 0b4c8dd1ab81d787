"""Which guesses make a tree: those that are likeliest to be reached, as many as are allowed.

A node is reached when it and all before it are right: its probability is the product along its path, never
greater than its parent's. Taking nodes by that product gives the best tree of a size, parents first.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from backend.types import DraftTree

BRANCHES = 4
"""Guesses at each next token that are looked at."""

_LEAST = math.log(0.06)
"""A node that is reached less often costs more than it gains."""


@dataclass(frozen=True, slots=True)
class TreeBudget:
    """How many nodes trees may have: `num_nodes` when they are `depth` deep, else in proportion."""

    num_nodes: int
    depth: int

    def of(self, depth: int) -> int:
        """Nodes of a tree that is so deep: a chain at least."""
        return max(depth, -(-self.num_nodes * depth // self.depth))


def product_tree(
    tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], num_nodes: int
) -> DraftTree:
    """The best tree of guesses that do not depend on each other: by level, best first, and how likely each.

    At least the best token of the first level is in it.
    """
    chosen: list[int] = []
    parents: list[int] = []
    number = itertools.count()
    # Entries: minus the path's log-probability, a tie-break, level, rank in the level, parent, minus its own.
    heap = [(-logprobs[0][0], next(number), 0, 0, -1, 0.0)]
    while heap and len(chosen) < num_nodes:
        cost, _, level, rank, parent, before = heapq.heappop(heap)
        if cost > -_LEAST and chosen:
            break
        if rank + 1 < len(tokens[level]):
            sibling = before - logprobs[level][rank + 1]
            heapq.heappush(heap, (sibling, next(number), level, rank + 1, parent, before))
        if level + 1 < len(tokens):
            child = cost - logprobs[level + 1][0]
            heapq.heappush(heap, (child, next(number), level + 1, 0, len(chosen), cost))
        chosen.append(tokens[level][rank])
        parents.append(parent)
    return DraftTree(tuple(chosen), tuple(parents))


def best_nodes(
    tokens: Sequence[int], parents: Sequence[int], logprobs: Sequence[float], num_nodes: int
) -> DraftTree:
    """The best tree among candidates, each behind its parent, with the log-probability of its whole path."""
    # Sorting is stable: of equals the parent stays first.
    order = sorted(range(len(tokens)), key=lambda node: -logprobs[node])[:num_nodes]
    kept = [node for i, node in enumerate(order) if i == 0 or logprobs[node] >= _LEAST]
    number = {-1: -1} | {node: i for i, node in enumerate(kept)}
    return DraftTree(tuple(tokens[node] for node in kept), tuple(number[parents[node]] for node in kept))
