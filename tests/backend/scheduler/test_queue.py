from __future__ import annotations

import pytest

from backend.errors import QueueFull
from backend.scheduler.queue import WaitingQueue
from backend.types import Request, SamplingParams, Sequence


def make_sequence(request_id: str) -> Sequence:
    request = Request(request_id=request_id, prompt_token_ids=[1], params=SamplingParams(max_tokens=1))
    return Sequence(request, [1], 1)


def filled(max_queue: int) -> tuple[WaitingQueue, list[Sequence]]:
    queue = WaitingQueue(max_queue)
    sequences = [make_sequence(str(index)) for index in range(max_queue)]
    for sequence in sequences:
        queue.push(sequence)
    return queue, sequences


def test_first_come_first_served_with_the_preempted_in_front() -> None:
    queue, (first, second, third) = filled(3)
    preempted = make_sequence("p")
    queue.push_front(preempted)  # the bound applies to new ones only
    assert queue.first(2) == [preempted, first] and len(queue) == 4
    queue.depart(preempted, 0.0)
    assert queue.remove("1") is second and queue.remove("1") is None
    assert queue.sequences() == [first, third]
    assert "0" in queue and "1" not in queue


def test_a_full_queue_estimates_retry_after() -> None:
    queue, _ = filled(100)
    with pytest.raises(QueueFull, match="100 requests wait .* holds 100; try again in 1 s"):
        queue.push(make_sequence("late"))
    for index in range(40):
        sequence = make_sequence(f"later {index}")
        queue.depart(queue.first(1)[0], now_s=2.0 * index)
        queue.push(sequence)
    with pytest.raises(QueueFull) as refusal:
        queue.push(make_sequence("late"))
    assert 15.0 <= refusal.value.retry_after_s <= 20.0  # ten departures, one each 2 s


def test_retry_after_is_bounded_and_ignores_idle_time() -> None:
    queue, sequences = filled(2)
    queue.depart(sequences[0], now_s=0.0)
    queue.depart(sequences[1], now_s=1.0)
    for index in range(2):
        queue.push(make_sequence(f"next day {index}"))
    queue.depart(queue.first(1)[0], now_s=86_400.0)
    queue.push(make_sequence("another"))
    with pytest.raises(QueueFull) as refusal:
        queue.push(make_sequence("late"))
    assert refusal.value.retry_after_s == 1.0


def test_blocked_sequences_are_skipped_and_keep_their_place() -> None:
    queue, (first, second, third) = filled(3)
    first.is_blocked = True
    assert queue.first(2) == [second, third] and queue.sequences() == [first, second, third]
    first.is_blocked = False
    assert queue.first(2) == [first, second]
