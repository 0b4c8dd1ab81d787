from __future__ import annotations

import pytest

from backend.kv.checkpoints import CheckpointPool, StateCopy
from backend.kv.manager import KVManager
from backend.types import PAGE_TOKENS, Request, SamplingParams, Sequence


def make_manager(num_pages: int = 16, revision: str = "r", kv_dtype: str = "float32") -> KVManager:
    return KVManager(num_pages, revision=revision, kv_dtype=kv_dtype)


def make_sequence(
    tokens: list[int], salt: str = "", adapter: str = "", prompt_logprobs: int | None = None
) -> Sequence:
    params = SamplingParams(max_tokens=1, prompt_logprobs=prompt_logprobs)
    request = Request(
        request_id="r", prompt_token_ids=tokens, params=params, tenant_salt=salt, adapter=adapter
    )
    return Sequence(request, list(tokens), len(tokens))


def compute(kv: KVManager, sequence: Sequence, end: int | None = None) -> None:
    """Attach the cached prefix and compute the rest, up to `end`."""
    if not sequence.pages:
        kv.attach(sequence, kv.match(sequence))
    end = len(sequence.tokens) if end is None else end
    assert kv.grow(sequence, end) == end
    kv.advance(sequence, end - sequence.num_computed_tokens)


def test_pages_of_a_finished_sequence_are_found_again() -> None:
    kv = make_manager()
    first, second = make_sequence(list(range(40))), make_sequence(list(range(40)))
    compute(kv, first)
    kv.release(first)
    assert (kv.free_pages, kv.cached_pages) == (16, 2)
    compute(kv, second)
    assert second.num_cached_tokens == 32 and kv.prefix_hit_tokens_total == 32
    kv.check_invariants([second])


def test_a_running_sequence_shares_its_full_pages() -> None:
    kv = make_manager()
    first, second = make_sequence(list(range(40))), make_sequence([*range(32), 99])
    compute(kv, first)
    compute(kv, second)
    assert second.pages[:2] == first.pages[:2] and second.pages[2] != first.pages[2]
    assert kv.free_pages == 16 - 4
    kv.check_invariants([first, second])
    kv.release(first)
    kv.check_invariants([second])
    kv.release(second)
    assert kv.free_pages == 16


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 31, 32, 33])
def test_a_full_hit_leaves_the_last_token_to_compute(num_tokens: int) -> None:
    kv = make_manager()
    tokens = list(range(num_tokens))
    first, second = make_sequence(tokens), make_sequence(tokens)
    compute(kv, first)
    match = kv.match(second)
    assert match.num_tokens == (num_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS < num_tokens


def test_an_unfilled_page_is_not_published_and_a_filled_one_only_once_computed() -> None:
    kv = make_manager()
    first, second = make_sequence(list(range(40))), make_sequence(list(range(40)))
    kv.attach(first, kv.match(first))
    kv.grow(first, 40)
    assert kv.match(second).num_tokens == 0
    kv.advance(first, 15)
    assert kv.match(second).num_tokens == 0
    kv.advance(first, 1)
    assert kv.match(second).num_tokens == 16
    assert kv.match(second).next_digest == kv.next_digest(first)


@pytest.mark.parametrize(("salt", "adapter"), [("b", "a"), ("a", "b"), ("", "aa"), ("aa", "")])
def test_other_tenants_and_adapters_never_hit(salt: str, adapter: str) -> None:
    kv = make_manager()
    compute(kv, make_sequence(list(range(40)), salt="a", adapter="a"))
    other = make_sequence(list(range(40)), salt=salt, adapter=adapter)
    assert kv.match(other).num_tokens == 0
    assert kv.match(make_sequence(list(range(40)), salt="a", adapter="a")).num_tokens == 32


def test_the_same_page_computed_twice_stays_with_both() -> None:
    kv = make_manager()
    first, second = make_sequence(list(range(40))), make_sequence(list(range(40)))
    for sequence in (first, second):
        compute(kv, sequence, 1)  # both have started before either publishes
    compute(kv, first)
    own = list(second.pages)
    compute(kv, second)
    assert second.pages[: len(own)] == own and not set(first.pages) & set(second.pages)
    kv.check_invariants([first, second])
    kv.release(second)
    assert kv.cached_pages == 0  # its copies went straight to the free list
    kv.release(first)
    assert (kv.free_pages, kv.cached_pages) == (16, 2)


def test_growth_evicts_and_stops_at_the_last_page() -> None:
    kv = make_manager(num_pages=4)
    first = make_sequence(list(range(48)))
    compute(kv, first)
    kv.release(first)
    second = make_sequence([99] * 100)
    kv.attach(second, kv.match(second))
    assert kv.grow(second, 20) == 20
    assert kv.cached_pages == 2  # the tail of the cached prefix was evicted, its beginning stays
    assert kv.match(first).num_tokens == 32
    assert kv.grow(second, 100) == 64
    kv.check_invariants([first, second])


def test_publishing_stops_when_the_equal_parent_page_is_evicted() -> None:
    kv = make_manager(num_pages=5)
    first, second = make_sequence(list(range(32))), make_sequence(list(range(64)))
    for sequence in (first, second):
        compute(kv, sequence, 1)  # both have started before either publishes
    compute(kv, first, 32)
    compute(kv, second, 32)
    kv.release(first)
    assert kv.cached_pages == 2
    compute(kv, second, 64)  # takes the last free page and evicts one equal page
    kv.check_invariants([second])
    kv.release(second)
    assert kv.free_pages == 5


def test_prompt_logprobs_neither_hit_nor_publish() -> None:
    kv = make_manager()
    compute(kv, make_sequence(list(range(40))))
    sequence = make_sequence(list(range(64)), prompt_logprobs=1)
    compute(kv, sequence)
    assert sequence.num_cached_tokens == 0 and kv.next_digest(sequence) is None
    assert kv.match(make_sequence(list(range(64)))).num_tokens == 32
    sequence.tokens.append(1)  # the prompt logprobs are computed: hits are fine again
    assert kv.match(sequence).num_tokens == 32


def test_without_prefix_cache_nothing_is_kept() -> None:
    kv = KVManager(8, revision="r", kv_dtype="float32", prefix_cache=False)
    sequence = make_sequence(list(range(40)))
    compute(kv, sequence)
    kv.release(sequence)
    assert (kv.free_pages, kv.cached_pages) == (8, 0)
    assert kv.match(make_sequence(list(range(40)))).num_tokens == 0


def test_a_leak_is_detected() -> None:
    kv = make_manager()
    sequence = make_sequence(list(range(40)))
    compute(kv, sequence)
    with pytest.raises(AssertionError):
        kv.check_invariants([])
    kv.check_invariants([sequence])


def make_hybrid(num_pages: int = 64) -> KVManager:
    """Rows have the states 0 to 7, checkpoints those from 8 on."""
    return KVManager(
        num_pages, revision="r", kv_dtype="float32", checkpoints=CheckpointPool(num_slots=4, first_slot=8)
    )


def compute_chunks(kv: KVManager, sequence: Sequence, row: int) -> list[int]:
    """Where the chunks of its prompt end."""
    sequence.row, ends = row, []
    kv.attach(sequence, kv.match(sequence))
    while sequence.num_uncomputed_tokens:
        ends.append(kv.chunk_end(sequence))
        assert kv.grow(sequence, ends[-1]) == ends[-1]
        kv.advance(sequence, ends[-1] - sequence.num_computed_tokens)
    kv.check_invariants([sequence])
    return ends


def test_a_hit_ends_where_a_state_is_known_and_the_next_one_where_pages_part() -> None:
    kv, tokens = make_hybrid(), list(range(200))
    first = make_sequence(tokens)
    assert compute_chunks(kv, first, row=3) == [192, 200]
    assert kv.take_state_copies() == [StateCopy(3, 8, 192)] and kv.num_checkpoints == 1
    kv.release(first)
    second, third = (make_sequence([*tokens[:150], *[own] * 50]) for own in (7, 8))
    assert kv.match(second).num_tokens == 0 and kv.match(second).num_paged_tokens == 144
    assert compute_chunks(kv, second, row=0) == [128, 192, 200]
    assert kv.take_state_copies() == [StateCopy(0, 9, 128), StateCopy(0, 10, 192)]
    kv.release(second)
    assert compute_chunks(kv, third, row=5) == [192, 200] and third.num_cached_tokens == 128
    assert kv.take_state_copies() == [StateCopy(9, 5, 128), StateCopy(5, 11, 192)]
    kv.release(third)
    assert kv.match(make_sequence([*tokens, 1])).num_tokens == 192


def test_a_state_without_pages_is_of_no_use() -> None:
    kv = make_hybrid(num_pages=8)
    first, second = make_sequence(list(range(100))), make_sequence([5] * 128)
    compute_chunks(kv, first, row=0)
    kv.release(first)
    compute_chunks(kv, second, row=0)
    kv.release(second)
    assert kv.num_checkpoints == 3 and kv.match(make_sequence(list(range(100)))).num_tokens == 0


def test_prompt_logprobs_neither_use_nor_write_states() -> None:
    kv = make_hybrid()
    first = make_sequence(list(range(100)))
    compute_chunks(kv, first, row=0)
    kv.release(first)
    kv.take_state_copies()
    other = make_sequence(list(range(100)), prompt_logprobs=0)
    assert compute_chunks(kv, other, row=1) == [100] and not kv.take_state_copies()
    assert other.checkpoint is None and kv.num_checkpoints == 1
