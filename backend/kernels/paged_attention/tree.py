"""The attention mask of a draft tree: every token sees its ancestors and itself, but no sibling branch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.types import tree_depths


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree of n nodes and their root, which comes first."""

    depths: Tensor  # [n + 1] int64; the root's is 0
    hidden: Tensor  # [n + 1, n + 1] bool: True where the row's token must not see the column's


@functools.lru_cache(maxsize=64)
def tree_shape(parents: tuple[int, ...], device: torch.device) -> TreeShape:
    """The shape of the tree with these parents, -1 being the root."""
    count = len(parents) + 1
    hidden = np.ones((count, count), dtype=np.bool_)
    hidden[:, 0] = False
    for node, parent in enumerate(parents, start=1):
        hidden[node] = hidden[parent + 1]
        hidden[node, node] = False
    depths = torch.tensor([0, *tree_depths(parents)], dtype=torch.int64)
    return TreeShape(depths.to(device), torch.from_numpy(hidden).to(device))


@functools.lru_cache(maxsize=256)
def seen_tokens(tree: tuple[int, ...] | int, window: int | None) -> NDArray[np.int64]:
    """What each query token of a tree with these parents, or of a chain of this length, sees: [n <= 64, 3].

    The first token that it sees before these, which count from 0, as bits those of them that it sees, and its
    depth.
    """
    shape = tree_shape(tree if isinstance(tree, tuple) else tuple(range(-1, tree - 2)), torch.device("cpu"))
    depths, seen = shape.depths.numpy(), ~shape.hidden.numpy()
    oldest = depths - (window or 1 << 40) + 1
    seen &= depths >= oldest[:, None]
    bits = np.bitwise_or.reduce(np.where(seen, np.int64(1) << np.arange(len(depths)), 0), axis=1)
    return np.stack((oldest, bits, depths), axis=1)


def ancestor_words(
    num_tokens: int, starts: NDArray[np.int32], trees: Mapping[int, tuple[int, ...]]
) -> NDArray[np.int32]:
    """Two words of bits for each token: those of its tree that it sees; 0 outside of trees. [T, 2].

    Sequence b begins with token starts[b]; `trees` has parents by sequence, as in types.DraftTree.
    """
    words = np.zeros((num_tokens, 2), np.uint32)
    for index, parents in trees.items():
        begin = starts[index]
        words[begin : begin + len(parents) + 1] = seen_tokens(parents, None)[:, 1:2].copy().view(np.uint32)
    return words.view(np.int32)


def hide_branches(hidden: Tensor, shape: TreeShape, length: int, window: int | None) -> None:
    """Turn the causal mask `hidden` [queries, keys] of one sequence into that of a tree, in place.

    The tree is the last of its `length` keys. Windows are counted by depth, not by index.
    """
    begin = length - len(shape.depths)
    hidden[:, begin:length] = shape.hidden
    if window is None:
        return
    oldest = shape.depths[:, None] - window  # the newest that a token does not see, counted from the root
    before = torch.arange(-begin, 0, device=hidden.device)
    hidden[:, :begin] = before <= oldest
    hidden[:, begin:length] |= shape.depths <= oldest
