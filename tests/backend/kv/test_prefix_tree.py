from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.kv.prefix_tree import Node, PrefixTree, page_digest, page_digests, root_digest
from backend.types import PAGE_TOKENS

PAGE = list(range(PAGE_TOKENS))


def test_identity_covers_every_part() -> None:
    roots = {
        root_digest("r", "bfloat16", "", ""),
        root_digest("r2", "bfloat16", "", ""),
        root_digest("r", "float32", "", ""),
        root_digest("r", "bfloat16", "tenant", ""),
        root_digest("r", "bfloat16", "", "tenant"),
        root_digest("rb", "float16", "", ""),
    }
    assert len(roots) == 6
    root = root_digest("r", "bfloat16", "", "")
    assert page_digest(root, PAGE) == page_digest(root, list(PAGE))
    assert page_digest(root, PAGE) != page_digest(root, PAGE[::-1])
    assert page_digest(root, PAGE) != page_digest(page_digest(root, PAGE), PAGE)


def path(tree: PrefixTree, name: str, pages: list[int]) -> list[Node]:
    """Publish a chain of pages."""
    nodes: list[Node] = []
    for page in pages:
        digest = page_digest(nodes[-1].digest if nodes else root_digest(name), PAGE)
        nodes.append(tree.insert(nodes[-1] if nodes else None, digest, page))
    return nodes


def test_least_recently_used_path_goes_first_and_leaf_before_root() -> None:
    tree = PrefixTree(8)
    old, new = path(tree, "old", [0, 1, 2]), path(tree, "new", [3, 4])
    for node in old + new:  # root first: the order of release must not matter
        tree.unpin(node)
    assert tree.num_evictable == 5
    assert [tree.evict() for _ in range(5)] == [2, 1, 0, 4, 3]
    with pytest.raises(KeyError):
        tree.evict()


def test_a_hit_refreshes_its_whole_path() -> None:
    tree = PrefixTree(8)
    old, new = path(tree, "old", [0, 1]), path(tree, "new", [3, 4])
    for node in old + new:
        tree.unpin(node)
    tree.pin(old[1])
    assert tree.num_evictable == 2
    tree.unpin(old[1])
    assert [tree.evict() for _ in range(4)] == [4, 3, 1, 0]


def test_a_pinned_child_protects_unused_parents() -> None:
    tree = PrefixTree(4)
    nodes = path(tree, "a", [0, 1])
    tree.unpin(nodes[0])
    assert tree.num_evictable == 0
    tree.check_invariants()
    tree.unpin(nodes[1])
    assert tree.num_evictable == 2


def test_an_evicted_node_is_marked() -> None:
    tree = PrefixTree(4)
    (node,) = path(tree, "a", [2])
    assert tree.find(node.digest) is node and tree.node_of(2) is node
    tree.unpin(node)
    assert tree.evict() == 2
    assert node.is_evicted and tree.find(node.digest) is None and tree.node_of(2) is None
    with pytest.raises(AssertionError, match="below a living parent"):
        tree.insert(node, b"child", 1)


class Model:
    """Naive reference model: parents and pins by page."""

    def __init__(self) -> None:
        self.parents: dict[int, int | None] = {}
        self.users: dict[int, int] = {}
        self.idle_since: dict[int, int] = {}
        self.clock = 0

    def protected(self, page: int) -> bool:
        children = [child for child, parent in self.parents.items() if parent == page]
        return self.users[page] > 0 or any(self.protected(child) for child in children)

    def refresh(self) -> None:
        """Children become idle before their parents."""
        depth = {page: self.depth(page) for page in self.parents}
        for page in sorted(self.parents, key=lambda page: -depth[page]):
            self.clock += 1
            if self.protected(page):
                self.idle_since.pop(page, None)
            else:
                self.idle_since.setdefault(page, self.clock)

    def depth(self, page: int) -> int:
        parent = self.parents[page]
        return 0 if parent is None else 1 + self.depth(parent)

    def next_victim(self) -> int:
        leaves = [page for page in self.idle_since if page not in self.parents.values()]
        return min(leaves, key=self.idle_since.__getitem__)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("iipuue"), st.integers(0, 11)), max_size=60))
def test_eviction_follows_a_model(operations: list[tuple[str, int]]) -> None:
    tree, model = PrefixTree(12), Model()
    for serial, (operation, choice) in enumerate(operations):
        known = sorted(model.parents)
        if operation == "i" and choice not in model.parents:
            parent = known[serial % len(known)] if known and serial % 3 else None
            above = None if parent is None else tree.node_of(parent)
            tree.insert(above, str(serial).encode(), choice)
            model.parents[choice], model.users[choice] = parent, 1
        elif operation in "pu" and known:
            page = known[choice % len(known)]
            node = tree.node_of(page)
            assert node is not None
            if operation == "p" and model.users[page] == 0:
                tree.pin(node)
                model.users[page] = 1
            elif operation == "u" and model.users[page] == 1:
                tree.unpin(node)
                model.users[page] = 0
        elif operation == "e" and model.idle_since:
            victim = model.next_victim()
            assert tree.evict() == victim
            del model.parents[victim], model.users[victim], model.idle_since[victim]
        model.refresh()
        tree.check_invariants()
        assert tree.num_evictable == len(model.idle_since) and len(tree) == len(model.parents)


def test_all_digests_at_once_are_the_chain() -> None:
    root, tokens = root_digest("r"), [(1 << 32) - 1 - 7 * number for number in range(3 * PAGE_TOKENS + 5)]
    chain = [root]
    for start in range(0, 3 * PAGE_TOKENS, PAGE_TOKENS):
        chain.append(page_digest(chain[-1], tokens[start : start + PAGE_TOKENS]))
    assert [*page_digests(root, tokens)] == chain[1:]
    assert [*page_digests(root, tokens, 8)] == [digest[:8] for digest in chain[1:]]
