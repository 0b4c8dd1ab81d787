from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import PageShortage
from backend.kv.pages import PagePool


def test_pages_run_out_and_come_back() -> None:
    pool = PagePool(2)
    assert [pool.allocate(), pool.allocate()] == [0, 1]
    with pytest.raises(PageShortage, match="all 2 pages are allocated"):
        pool.allocate()
    assert pool.release(0)
    pool.free(0)
    assert pool.allocate() == 0


def test_a_shared_page_is_released_by_its_last_user() -> None:
    pool = PagePool(1)
    page = pool.allocate()
    assert not pool.share(page)
    assert pool.references(page) == 2
    assert not pool.release(page)
    assert pool.release(page)
    assert not pool.is_free(page)
    assert pool.share(page)  # a prefix hit on a page that only the prefix tree kept


def test_misuse_is_detected() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    with pytest.raises(AssertionError, match="still has references"):
        pool.free(page)
    pool.release(page)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(page)
    with pytest.raises(AssertionError, match="is free and cannot be shared"):
        pool.share(1)
    with pytest.raises(ValueError, match="num_pages is 0"):
        PagePool(0)


@given(st.integers(1, 8), st.lists(st.tuples(st.sampled_from("tsr"), st.integers(0, 7)), max_size=60))
def test_counts_follow_a_model(num_pages: int, operations: list[tuple[str, int]]) -> None:
    pool = PagePool(num_pages)
    users: dict[int, int] = {}
    for operation, choice in operations:
        if operation == "t" and len(users) < num_pages:
            page = pool.allocate()
            assert page not in users
            users[page] = 1
        elif users and operation in "sr":
            page = sorted(users)[choice % len(users)]
            if operation == "s":
                pool.share(page)
                users[page] += 1
            else:
                users[page] -= 1
                assert pool.release(page) == (users[page] == 0)
                if users[page] == 0:
                    pool.free(page)
                    del users[page]
        pool.check_invariants()
        assert pool.num_free == num_pages - len(users)
        assert all(pool.references(page) == users.get(page, 0) for page in range(num_pages))
