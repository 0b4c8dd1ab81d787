"""The pool of checkpoints, against a model of it in a few lines; where checkpoints lie."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from backend.kv.checkpoints import CHECKPOINT_TOKENS, INTERVAL_TOKENS, CheckpointPool, is_stop, next_stop
from backend.types import StateCheckpoint

NUM_ROWS = 3

writes = st.tuples(st.integers(0, NUM_ROWS - 1), st.integers(0, 9), st.booleans())
restores = st.tuples(st.integers(0, NUM_ROWS - 1), st.integers(0, 9))


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 5), st.lists(st.one_of(writes, restores), max_size=60))
def test_a_slot_holds_what_its_checkpoint_says(num_slots: int, works: list[tuple[int, ...]]) -> None:
    """Rows write the states of prefixes, and go on from those of others."""
    pool = CheckpointPool(num_slots, NUM_ROWS)
    content: dict[int, bytes] = {}  # of slots
    newest: list[StateCheckpoint | None] = [None] * NUM_ROWS
    order: list[bytes] = []  # of use
    for row, number, *kept in works:
        digest = bytes([number])
        found = pool.find(digest)
        assert (found is not None) == (digest in order)
        before = newest[row]
        if kept:
            if before is not None and not before.is_kept and before.digest != digest and before.slot >= 0:
                order.remove(before.digest)
            content[row] = digest
            newest[row] = pool.write(digest, number * CHECKPOINT_TOKENS, row, before, is_kept=bool(kept[0]))
            order = [*(each for each in order if each != digest), digest][-num_slots:]
        elif found is not None:
            pool.restore(found, row)
            newest[row] = found
            order.remove(digest)
            order.append(digest)
            assert found.is_kept
        for copy in pool.take_copies():
            assert copy.position == content[copy.source][0] * CHECKPOINT_TOKENS
            content[copy.target] = content[copy.source]
        pool.check_invariants()
        assert len(pool) == len(order) <= num_slots
        for known in order:
            checkpoint = pool.find(known)
            assert checkpoint is not None and content[checkpoint.slot] == known
        restored = newest[row]
        if not kept and found is not None:
            assert restored is found and content[row] == digest


@given(st.integers(0, 3000), st.integers(1, 3000), st.integers(0, 40))
def test_a_chunk_ends_at_the_next_state_that_is_kept(start: int, length: int, branch: int) -> None:
    end, branch = start + length, branch * CHECKPOINT_TOKENS
    stop = next_stop(start, end, branch)
    between = range((start // CHECKPOINT_TOKENS + 1) * CHECKPOINT_TOKENS, end, CHECKPOINT_TOKENS)
    assert stop == min((p for p in between if is_stop(p, end, branch)), default=end)
    assert start < stop <= end and stop - start <= INTERVAL_TOKENS
    assert is_stop((end - 1) // CHECKPOINT_TOKENS * CHECKPOINT_TOKENS, end, branch)


def test_an_answers_checkpoint_takes_the_place_of_its_last_unless_another_used_it() -> None:
    pool = CheckpointPool(4, 0)
    prompt = pool.write(b"p", 64, 9, None, is_kept=True)
    first = pool.write(b"1", 128, 9, prompt, is_kept=False)
    second = pool.write(b"2", 192, 9, first, is_kept=False)
    assert (first.slot, pool.find(b"1"), pool.find(b"p")) == (-1, None, prompt)
    pool.restore(second, 8)
    third = pool.write(b"3", 256, 9, second, is_kept=False)
    assert pool.find(b"2") is second and pool.find(b"3") is third
