"""Pages of windows. Random requests on them are in tests/backend/scheduler/test_properties.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.kv.manager import KVManager
from backend.kv.windows import WindowPages
from backend.types import PAGE_TOKENS, Sequence
from tests.backend.kv.test_manager import compute, make_sequence


def make_manager(num_window_pages: int, num_pages: int = 64) -> tuple[KVManager, WindowPages]:
    """A token sees 32 before it: in two pages, or three."""
    windows = WindowPages(num_window_pages, window=33)
    return KVManager(num_pages, revision="r", kv_dtype="float32", windows=windows), windows


@given(st.integers(1, 100), st.integers(0, 200))
def test_the_first_page_is_that_of_the_oldest_token_that_is_seen(window: int, num_tokens: int) -> None:
    """The token after `num_tokens` sees itself and `window - 1` before it."""
    oldest = max(0, num_tokens - (window - 1))
    assert WindowPages(1, window).first(num_tokens) == oldest // PAGE_TOKENS


def test_a_sequence_holds_its_window_only() -> None:
    kv, windows = make_manager(8)
    sequence = make_sequence(list(range(160)))
    kv.attach(sequence, kv.match(sequence))
    held = []
    for end in range(16, 161, 16):
        assert kv.grow(sequence, end) == end
        kv.advance(sequence, 16)
        kv.check_invariants([sequence])
        held.append(8 - windows._pool.num_free - len(windows._evictable))
    assert held == [1, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    kv.release(sequence)
    assert windows.num_free == 8 and kv.free_pages == 64


def test_growth_ends_where_either_kind_of_pages_ends() -> None:
    kv, windows = make_manager(5)
    sequence = make_sequence([1] * 200)
    kv.attach(sequence, kv.match(sequence))
    assert kv.grow(sequence, 200) == 80 and windows.num_free == 0
    kv.advance(sequence, 80)
    assert kv.grow(sequence, 200) == 128  # three of the five are behind it
    kv.check_invariants([sequence])


def test_rejected_drafts_leave_no_page() -> None:
    kv, windows = make_manager(8)
    sequence = make_sequence(list(range(40)))
    compute(kv, sequence)
    assert kv.grow(sequence, 80) == 80 and windows.num_free == 8 - 5
    kv.trim(sequence)
    assert windows.num_free == 8 - 3 and len(sequence.window_pages) == 3
    kv.check_invariants([sequence])


def test_a_hit_takes_the_last_pages_alone() -> None:
    kv, _ = make_manager(16)
    first, second = make_sequence(list(range(100))), make_sequence([*range(96), 7])
    compute(kv, first)
    assert kv.match(second).num_tokens == 96
    compute(kv, second)
    assert second.window_pages[:4] == [0] * 4 and second.window_pages[4:6] == first.window_pages[4:6]
    kv.check_invariants([first, second])
    kv.release(first)
    kv.check_invariants([second])


def fill(kv: KVManager, *, except_for: int) -> Sequence:
    """A sequence that takes all pages of windows but these."""
    assert kv._windows is not None
    other = make_sequence([9] * (kv._windows.num_free - except_for) * PAGE_TOKENS, salt="other")
    kv.attach(other, kv.match(other))
    assert kv.grow(other, len(other.tokens)) == len(other.tokens)
    return other


def test_a_hit_ends_where_its_window_is_and_the_same_pages_are_known_again() -> None:
    kv, _ = make_manager(9)
    tokens = list(range(128))
    first, second = make_sequence(tokens), make_sequence([*tokens, 5])
    compute(kv, first)
    kv.release(first)
    assert kv.match(second).num_tokens == 128
    other = fill(kv, except_for=2)
    assert kv.match(second).num_tokens == 128  # what it released last is evicted last
    kv.release(other)
    other = fill(kv, except_for=1)
    match = kv.match(second)
    assert match.num_tokens == 0 and match.next_digest == kv.next_digest(second) and kv.cached_pages == 8
    kv.release(other)
    kv.release(second)
    compute(kv, second)
    assert second.num_cached_tokens == 0 and kv.cached_pages == 8
    kv.check_invariants([second])
    third = make_sequence([*tokens, 6])
    assert kv.match(third).num_tokens == 128
    compute(kv, third)
    assert third.pages[:8] != second.pages[:8] and third.window_pages[6:8] == second.window_pages[6:8]
    kv.check_invariants([second, third])


def test_evicted_nodes_forget_their_windows() -> None:
    kv, windows = make_manager(16, num_pages=8)
    first = make_sequence(list(range(96)))
    compute(kv, first)
    kv.release(first)
    second = make_sequence([3] * 128)
    kv.attach(second, kv.match(second))
    assert kv.grow(second, 128) == 128 and not windows._own_of
    kv.check_invariants([second])
    kv.release(second)
    assert windows._pool.num_free == 16


def test_an_equal_page_outlives_the_node_it_was_known_by() -> None:
    kv, windows = make_manager(10, num_pages=14)
    first, second = make_sequence(list(range(64))), make_sequence(list(range(64)))
    for sequence in (first, second):
        compute(kv, sequence, 1)  # both have started before either publishes
    compute(kv, first)
    kv.release(first)
    other = fill(kv, except_for=0)  # the windows of `first` are gone, its nodes are not
    kv.release(other)
    compute(kv, second)
    assert set(windows._own_of.values()) >= set(second.window_pages[2:4])
    third = make_sequence([8] * 160)
    for end in range(16, 161, 16):
        compute(kv, third, end)
        kv.check_invariants([second, third])
    assert not set(windows._page_of) & set(second.window_pages[2:4])  # all nodes of `first` are evicted
    kv.release(second)
    kv.check_invariants([third])


def test_room_is_counted_for_all_that_runs() -> None:
    kv, _ = make_manager(12)
    running = [make_sequence([n] * 20) for n in range(3)]
    new = make_sequence([7] * 500)
    for sequence in running:
        kv.attach(sequence, kv.match(sequence))
    for count, has_room in ((0, True), (1, True), (2, True), (3, False)):
        assert kv.has_window_room(new, kv.match(new), running[:count]) is has_room, count


def test_a_leak_is_detected() -> None:
    kv, windows = make_manager(8)
    sequence = make_sequence(list(range(40)))
    compute(kv, sequence)
    kv.check_invariants([sequence])
    windows._pool.share(sequence.window_pages[-1])
    with pytest.raises(AssertionError, match="users, other count"):
        kv.check_invariants([sequence])
