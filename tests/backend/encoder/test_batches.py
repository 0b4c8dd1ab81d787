from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend.encoder.batches import BatchQueue

requests_strategy = st.lists(st.lists(st.integers(1, 256), min_size=1, max_size=20), max_size=8)


@given(requests=requests_strategy, limit=st.integers(1, 1024))
def test_every_input_is_taken_once_in_bounded_batches(requests: list[list[int]], limit: int) -> None:
    queue = BatchQueue(limit)
    for key, lengths in enumerate(requests):
        queue.add(key, lengths)
    taken: list[tuple[int, int]] = []
    while batch := queue.next_batch():
        lengths = [requests[key][index] for key, index in batch]
        assert len(batch) == 1 or len(batch) * max(lengths) <= limit
        assert 2 * min(lengths) >= max(lengths)  # at most half is padding
        taken += batch
        left = [
            requests[k][i]
            for k in range(len(requests))
            for i in range(len(requests[k]))
            if (k, i) not in taken
        ]
        assert (queue.num_tokens, queue.num_inputs) == (sum(left), len(left))
    assert sorted(taken) == [(k, i) for k, lengths in enumerate(requests) for i in range(len(lengths))]


@given(requests=requests_strategy, small=st.integers(1, 256))
def test_a_small_request_waits_for_one_batch_of_every_other(requests: list[list[int]], small: int) -> None:
    queue = BatchQueue()
    for key, lengths in enumerate(requests):
        queue.add(key, lengths)
    queue.add(-1, [small])
    passes = 1
    while (-1, 0) not in queue.next_batch():
        passes += 1
    assert passes <= len(requests) + 1


@given(requests=requests_strategy.filter(bool), data=st.data())
def test_a_cancelled_request_is_removed(requests: list[list[int]], data: st.DataObject) -> None:
    queue = BatchQueue()
    for key, lengths in enumerate(requests):
        queue.add(key, lengths)
    before = [queue.next_batch() for _ in range(data.draw(st.integers(0, 3)))]
    gone = data.draw(st.integers(0, len(requests) - 1))
    queue.cancel(gone)
    queue.cancel(gone)
    while batch := queue.next_batch():
        assert all(key != gone for key, _ in batch)
        before.append(batch)
    others = sum(len(lengths) for key, lengths in enumerate(requests) if key != gone)
    assert sum(key != gone for batch in before for key, _ in batch) == others
    assert (queue.num_tokens, queue.num_inputs) == (0, 0)
