"""When one more process starts, and when one ends."""

from __future__ import annotations

from collections.abc import Sequence

from backend.server.engine_messages import EngineStats
from gateway.processes.replica_count import ReplicaCount
from policies.engine_replicas import ReplicaRange

RULES = ReplicaRange(min=0, max=2, queue_s=1.0, sleep_after_s=10.0)
STEP_S = 0.01


def busy(steps: int, queue_s: float = 0.0) -> EngineStats:
    return EngineStats(
        num_running=1, steps_total=steps, waiting_tokens=round(queue_s * 100), prefill_s_per_token=0.01
    )


def idle(steps: int) -> EngineStats:
    return EngineStats(steps_total=steps, decode_step_s=60.0)


class Model:
    """A model whose processes start and end as the rule says, with a clock."""

    def __init__(self, rules: ReplicaRange = RULES, count: int = 0) -> None:
        self.rule, self.rules, self.count, self.now_s = ReplicaCount(), rules, count, 100.0

    def poll(self, *stats: EngineStats | None, is_asked: bool = False, after_s: float = 0.5) -> int:
        self.now_s += after_s
        assert len(stats) == self.count
        self.count = self.rule.wanted(self.rules, stats, self.now_s, is_asked=is_asked)
        return self.count

    def polls(self, seconds: float, stats: Sequence[EngineStats | None]) -> list[int]:
        """Until the number changes."""
        found = []
        for _ in range(int(seconds / 0.5)):
            before = self.count
            found.append(self.poll(*stats))
            if self.count != before:
                break
        return found


def test_none_runs_until_one_is_asked_for() -> None:
    model = Model()
    assert model.poll() == 0
    assert model.poll(is_asked=True) == 1
    assert model.polls(60, [None]) == [1] * 120  # it starts, and no second one does


def test_one_more_starts_when_requests_have_waited_for_a_while() -> None:
    model = Model(count=1)
    assert model.polls(60, [busy(1, queue_s=0.9)]) == [1] * 120
    assert model.polls(60, [busy(1, queue_s=1.1)]) == [1, 1, 1, 1, 2]
    model = Model(count=1)
    for _ in range(20):  # bursts, each computed soon
        assert model.polls(1.5, [busy(1, queue_s=9)]) == [1, 1, 1]
        assert model.poll(busy(2)) == 1
    model = Model(ReplicaRange(min=1, max=1), count=1)
    assert model.polls(60, [busy(1, queue_s=9)]) == [1] * 120
    model = Model(ReplicaRange(min=1, max=3), count=2)  # one of two has room
    assert model.polls(60, [busy(1, queue_s=9), busy(1)]) == [2] * 120


def test_one_ends_when_one_of_them_is_idle_for_a_while() -> None:
    model = Model(count=2)
    model.poll(busy(1), idle(1))
    assert model.polls(9.5, [busy(1), idle(1)]) == [2] * 19
    assert model.poll(busy(1), idle(2)) == 2  # a short request between two polls
    assert model.polls(60, [busy(1), idle(2)]) == [2] * 20 + [1]
    assert model.polls(60, [busy(1)]) == [1] * 120
    assert model.polls(60, [idle(9)])[-1] == 0
    model = Model(ReplicaRange(min=1, max=2), count=1)
    assert model.polls(900, [idle(1)]) == [1] * 1800


def test_what_waits_for_one_to_be_ready_keeps_it_awake() -> None:
    model = Model(count=1)
    for _ in range(60):
        assert model.poll(idle(1), is_asked=True) == 1


def test_too_few_are_made_up_for() -> None:
    model = Model(ReplicaRange(min=2, max=3), count=1)
    assert model.poll(None) == 2
