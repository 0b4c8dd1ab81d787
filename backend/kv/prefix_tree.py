"""Radix tree of cached prefixes: the page that holds the keys and values of a run of tokens.

A node is one full page. Its digest chains over all pages before it and over tenant, adapter, model revision
and KV dtype, so it identifies the whole path from the root, and one dict serves as the tree. LRU eviction
takes the least recently used unpinned node; children are evicted before their parents.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Tokens

from backend.types import PAGE_TOKENS

_PACK_PAGE = struct.Struct(f"<{PAGE_TOKENS}I").pack


def root_digest(*parts: str) -> bytes:
    """Return the start of a digest chain: all that determines a page's content besides the tokens."""
    digest = hashlib.sha256(b"penstock kv page chain 1")
    for part in parts:
        encoded = part.encode()
        # Length prefixes distinguish ("ab", "c") from ("a", "bc").
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def page_digest(parent: bytes, tokens: Tokens[int]) -> bytes:
    """Return the digest of the page of these PAGE_TOKENS tokens after the prefix with digest `parent`."""
    return hashlib.sha256(parent + _PACK_PAGE(*tokens)).digest()


def page_digests(root: bytes, tokens: Tokens[int], num_bytes: int | None = None) -> Iterator[bytes]:
    """The first bytes of each `page_digest` of the full pages of these tokens, which are packed at once."""
    end = len(tokens) // PAGE_TOKENS * PAGE_TOKENS
    packed = struct.pack(f"<{end}I", *tokens[:end])
    digest = root
    for start in range(0, 4 * end, 4 * PAGE_TOKENS):
        digest = hashlib.sha256(digest + packed[start : start + 4 * PAGE_TOKENS]).digest()
        yield digest[:num_bytes]


class Node:
    """One page in the tree. `pins` is 1 if sequences use the page, plus 1 for each pinned child."""

    __slots__ = ("digest", "num_children", "page", "parent", "pins")

    def __init__(self, digest: bytes, page: int, parent: Node | None) -> None:
        self.digest = digest
        self.page = page  # -1 after eviction
        self.parent = parent  # None: the first page of a prompt
        self.pins = 0
        self.num_children = 0

    @property
    def is_evicted(self) -> bool:
        """True once the tree has dropped the node; nothing may be inserted below it."""
        return self.page < 0


class PrefixTree:
    """Index of published pages.

    A pinned node pins its parent, so an unpinned node has only unpinned descendants, all unpinned before it.
    The list of unpinned nodes in that order therefore always starts with the least recently used leaf:
    eviction is O(1) and never cuts a path in the middle.
    """

    __slots__ = ("_changes", "_evictable", "_node_of_page", "_nodes")

    def __init__(self, num_pages: int) -> None:
        self._changes: dict[bytes, bool] | None = None  # digest → published (True) or evicted since read
        self._nodes: dict[bytes, Node] = {}
        self._node_of_page: list[Node | None] = [None] * num_pages
        self._evictable: OrderedDict[int, Node] = OrderedDict()  # by page, least recently used first

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def num_evictable(self) -> int:
        """Unpinned nodes: `evict` can be called this many times."""
        return len(self._evictable)

    def find(self, digest: bytes) -> Node | None:
        """Return the node with this digest, if any. Does not change the eviction order."""
        return self._nodes.get(digest)

    def node_of(self, page: int) -> Node | None:
        """Return the node of this page, if any."""
        return self._node_of_page[page]

    def insert(self, parent: Node | None, digest: bytes, page: int) -> Node:
        """Publish a page that a sequence is using: the new node starts pinned. The digest must be new."""
        assert digest not in self._nodes, "a digest is published once"
        assert parent is None or not parent.is_evicted, "a page is published below a living parent"
        node = Node(digest, page, parent)
        self._nodes[digest] = node
        if self._changes is not None:
            self._changes[digest] = True
        self._node_of_page[page] = node
        if parent is not None:
            parent.num_children += 1
        self.pin(node)
        return node

    def pin(self, node: Node) -> None:
        """Protect the node and its path to the root from eviction. Call when its page gets its first user."""
        current: Node | None = node
        while current is not None:
            current.pins += 1
            if current.pins > 1:
                return
            self._evictable.pop(current.page, None)
            current = current.parent

    def unpin(self, node: Node) -> None:
        """Undo one `pin` when the page loses its last user. Unpinned nodes become most recently used."""
        current: Node | None = node
        while current is not None:
            current.pins -= 1
            assert current.pins >= 0, f"page {current.page} is unpinned more often than pinned"
            if current.pins > 0:
                return
            self._evictable[current.page] = current
            current = current.parent

    def evict(self) -> int:
        """Drop the least recently used unpinned leaf and return its page. Raises KeyError if none is left."""
        page, node = self._evictable.popitem(last=False)
        assert node.num_children == 0, f"page {page} would be evicted before its children"
        del self._nodes[node.digest]
        if self._changes is not None:
            self._changes[node.digest] = False
        self._node_of_page[page] = None
        if node.parent is not None:
            node.parent.num_children -= 1
        node.page = -1
        node.parent = None  # a stale reference to this node must not keep the path alive
        return page

    def digests(self) -> list[bytes]:
        """Return the digests of all published pages."""
        return list(self._nodes)

    def take_changes(self) -> dict[bytes, bool]:
        """Return what was published (True) or evicted (False) since the last call; the first starts it."""
        changes, self._changes = self._changes or {}, {}
        return changes

    def check_invariants(self) -> None:
        """Raise AssertionError if links, pins or the eviction order disagree. For tests: O(nodes)."""
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
                assert order[node.page] < order[parent.page], f"page {parent.page} precedes its child"
        for digest, node in self._nodes.items():
            assert node.num_children == children.get(digest, 0), f"page {node.page}: children miscounted"
        known = sum(node is not None for node in self._node_of_page)
        assert known == len(self._nodes), f"{known} pages point to {len(self._nodes)} nodes"
