"""Radix tree of known prefixes: which page holds the keys and values of which run of tokens.

A node is one full page. Its digest chains over all pages before it and over tenant, adapter, model revision
and KV dtype, so it names the whole path from the root: one dict holds every edge of the tree. Eviction takes
the least recently used node that nobody pins; children leave before their parents.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Sequence as Tokens

from backend.types import PAGE_TOKENS

_PACK_PAGE = struct.Struct(f"<{PAGE_TOKENS}I").pack


def root_digest(*parts: str) -> bytes:
    """Start of a digest chain: everything besides the tokens that decides what lies in a page."""
    digest = hashlib.sha256(b"penstock kv page chain 1")
    for part in parts:
        encoded = part.encode()
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def page_digest(parent: bytes, tokens: Tokens[int]) -> bytes:
    """Identity of the page that holds these PAGE_TOKENS tokens after the prefix that `parent` names."""
    return hashlib.sha256(parent + _PACK_PAGE(*tokens)).digest()


class Node:
    """One page in the tree. `pins` = 1 if sequences use the page, + 1 for each pinned child."""

    __slots__ = ("digest", "num_children", "page", "parent", "pins")

    def __init__(self, digest: bytes, page: int, parent: Node | None) -> None:
        self.digest = digest
        self.page = page  # -1 after eviction
        self.parent = parent  # None: the first page of a prompt
        self.pins = 0
        self.num_children = 0

    @property
    def is_evicted(self) -> bool:
        """True when the tree has dropped the node; whoever still holds it must not build on it."""
        return self.page < 0


class PrefixTree:
    """Index of published pages.

    A pinned node pins its parent, so an unpinned node has only unpinned descendants, and these became so
    before it did. The list of unpinned nodes in that order therefore always starts with the least recently
    used leaf: eviction is O(1) and never cuts a path in the middle.
    """

    __slots__ = ("_evictable", "_node_of_page", "_nodes")

    def __init__(self, num_pages: int) -> None:
        self._nodes: dict[bytes, Node] = {}
        self._node_of_page: list[Node | None] = [None] * num_pages
        self._evictable: OrderedDict[int, Node] = OrderedDict()  # by page, least recently used first

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def num_evictable(self) -> int:
        """Nodes that nobody pins: `evict` can be called this many times."""
        return len(self._evictable)

    def find(self, digest: bytes) -> Node | None:
        """The node of this identity, if it is known. Has no effect on the order of eviction."""
        return self._nodes.get(digest)

    def node_of(self, page: int) -> Node | None:
        """The node that keeps this page, if one does."""
        return self._node_of_page[page]

    def insert(self, parent: Node | None, digest: bytes, page: int) -> Node:
        """Publish a page that its sequence is using: the new node starts pinned. The digest must be new."""
        assert digest not in self._nodes, "a digest is published once"
        assert parent is None or not parent.is_evicted, "a page is published below a living parent"
        node = Node(digest, page, parent)
        self._nodes[digest] = node
        self._node_of_page[page] = node
        if parent is not None:
            parent.num_children += 1
        self.pin(node)
        return node

    def pin(self, node: Node) -> None:
        """Protect the node and its path to the root: its page has got its first user."""
        current: Node | None = node
        while current is not None:
            current.pins += 1
            if current.pins > 1:
                return
            self._evictable.pop(current.page, None)
            current = current.parent

    def unpin(self, node: Node) -> None:
        """Undo one `pin`: its page has lost its last user. What is free now counts as used just now."""
        current: Node | None = node
        while current is not None:
            current.pins -= 1
            assert current.pins >= 0, f"page {current.page} is unpinned more often than pinned"
            if current.pins > 0:
                return
            self._evictable[current.page] = current
            current = current.parent

    def evict(self) -> int:
        """Drop the least recently used unpinned leaf and return its page. KeyError when there is none."""
        page, node = self._evictable.popitem(last=False)
        assert node.num_children == 0, f"page {page} would be evicted before its children"
        del self._nodes[node.digest]
        self._node_of_page[page] = None
        if node.parent is not None:
            node.parent.num_children -= 1
        node.page = -1
        node.parent = None  # a stale cursor must not keep the path alive
        return page

    def check_invariants(self) -> None:
        """Raise AssertionError when links, pins or the eviction order disagree. For tests: O(nodes)."""
        order = {page: index for index, page in enumerate(self._evictable)}
        children: dict[bytes, int] = {}
        for digest, node in self._nodes.items():
            assert node.digest == digest and self._node_of_page[node.page] is node
            assert (node.pins == 0) == (node.page in order), f"page {node.page}: pins {node.pins}"
            parent = node.parent
            if parent is None:
                continue
            children[parent.digest] = children.get(parent.digest, 0) + 1
            assert self._nodes.get(parent.digest) is parent, f"page {node.page} has lost its parent"
            if node.page not in order:
                assert parent.page not in order, f"page {parent.page} is evictable below a pinned child"
            elif parent.page in order:
                assert order[node.page] < order[parent.page], f"page {parent.page} would go before its child"
        for digest, node in self._nodes.items():
            assert node.num_children == children.get(digest, 0), f"page {node.page}: children miscounted"
        known = sum(node is not None for node in self._node_of_page)
        assert known == len(self._nodes), f"{known} pages point to {len(self._nodes)} nodes"
