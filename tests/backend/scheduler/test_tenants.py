"""Fair queueing by tenant: property tests on the fake runner, whose scheduler shares out every step."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backend.errors import QueueFull
from backend.scheduler import SchedulerConfig
from backend.scheduler.tenants import OUTPUT_WEIGHT, TURN
from backend.types import Plan, SamplingParams, Sequence, SequenceStatus
from tests.backend.scheduler.fake_runner import FakeRunner

ENDLESS = 4000


def make_runner(
    num_pages: int = 2000, *, max_running: int = 8, prefix_cache: bool = True, max_queue: int = 512
) -> FakeRunner:
    config = SchedulerConfig(
        max_model_tokens=8192, max_batch_tokens=256, max_running=max_running, max_queue=max_queue
    )
    return FakeRunner(config, num_pages, prefix_cache)


def add(
    runner: FakeRunner,
    tenant: str,
    serial: int,
    num_prompt: int = 20,
    max_tokens: int = 2,
    priority: int = 0,
) -> Sequence:
    prompt = [serial % 1009, *range(1, num_prompt)]
    params = SamplingParams(max_tokens=max_tokens, min_tokens=1)
    return runner.add(f"{tenant} {serial} {priority}", prompt, params, tenant, priority)


def served(plan: Plan) -> Counter[str]:
    """Counter units of a step by tenant, counted from the plan alone."""
    units: Counter[str] = Counter()
    for chunk in plan.chunks:
        is_output = chunk.start >= chunk.sequence.num_prompt_tokens
        weight = OUTPUT_WEIGHT if is_output else 1
        units[chunk.sequence.request.tenant_salt] += weight * chunk.num_tokens
    return units


def num_waiting(runner: FakeRunner, tenant: str) -> int:
    return sum(
        s.status is SequenceStatus.WAITING and s.request.tenant_salt == tenant
        for s in runner.sequences.values()
    )


def steps_until_done(runner: FakeRunner, sequence: Sequence, most: int = 1000) -> int:
    for count in range(most):
        if sequence.status is SequenceStatus.FINISHED:
            return count
        runner.step()
    raise AssertionError(f"{sequence.request.request_id} is not done after {most} steps")


FLOODS = {"long generations": (20, ENDLESS), "cold prompts": (1500, 2), "both": (400, 300)}


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("priority", [0, 1])
@pytest.mark.parametrize("num_pages", [2000, 300])  # 300: the flood alone preempts itself
@pytest.mark.parametrize("flood", FLOODS)
def test_a_short_request_passes_a_flood_of_another_tenant(
    flood: str, num_pages: int, priority: int, prefix_cache: bool
) -> None:
    num_prompt, max_tokens = FLOODS[flood]
    runner = make_runner(num_pages, prefix_cache=prefix_cache)
    for serial in range(40):
        add(runner, "a", serial, num_prompt, max_tokens, priority)
    for _ in range(30):
        runner.step()
    for serial in range(3):
        short = add(runner, "b", serial, priority=priority)
        assert steps_until_done(runner, short) <= 6
        for _ in range(serial * 5):
            runner.step()


def test_a_full_memory_preempts_the_tenant_that_holds_most() -> None:
    runner = make_runner(num_pages=40)
    for serial in range(6):
        add(runner, "a", serial, 20, ENDLESS // 20)
    for _ in range(40):
        runner.step()
    small = add(runner, "b", 0, 20, 100)
    steps_until_done(runner, small)
    assert small.num_preemptions == 0 and runner.scheduler.preemptions_total > 0


def test_preemption_ends_at_equal_shares() -> None:
    runner = make_runner(max_running=8)
    for tenant in "ab":
        for serial in range(30):
            add(runner, tenant, serial, 20, ENDLESS)
        for _ in range(60):
            runner.step()
    rows = Counter(s.request.tenant_salt for s in runner.sequences.values() if s.row >= 0)
    assert rows == {"a": 4, "b": 4}
    before = runner.scheduler.preemptions_total
    for _ in range(TURN // OUTPUT_WEIGHT):
        runner.step()
    assert before == runner.scheduler.preemptions_total == 4


def test_more_tenants_than_rows_take_turns() -> None:
    runner = make_runner(max_running=2)
    streams = [add(runner, tenant, 0, 20, ENDLESS) for tenant in "abcde"]
    for _ in range(1500):
        runner.step()
    outputs = [stream.num_output_tokens for stream in streams]
    lengths = sorted(len(stream.tokens) for stream in streams)
    bound = (TURN + sum(lengths[-2:])) / OUTPUT_WEIGHT
    assert min(outputs) > 300 and max(outputs) - min(outputs) <= bound, outputs


def test_one_tenant_does_not_fill_the_queue_of_others() -> None:
    runner = make_runner(max_running=1, max_queue=10)
    for serial in range(11):
        add(runner, "a", serial, max_tokens=50)
        runner.step()
    with pytest.raises(QueueFull):
        add(runner, "a", 99)
    for serial in range(5):
        add(runner, "b", serial)
    with pytest.raises(QueueFull):
        add(runner, "b", 99)


workloads = st.lists(
    st.tuples(
        st.sampled_from("aaabc"),
        st.integers(1, 300),  # prompt tokens
        st.sampled_from([1, 2, 20, 120]),  # output tokens
        st.integers(0, 3),  # steps before it arrives
        st.sampled_from([0, 0, 0, 1]),  # priority
    ),
    min_size=2,
    max_size=24,
)


PAUSED_PROMPT_OF_ONE_TOKEN = [
    *[("a", 1, 1, 2 * (number == 5), 0) for number in range(15)],
    ("a", 16, 1, 0, 1),
    ("b", 2, 1, 0, 1),
    ("a", 1, 1, 0, 1),
]
"""The last prompt is admitted in one step, and computed in a later one, after another prompt."""


@example(PAUSED_PROMPT_OF_ONE_TOKEN, 3, 40)
@settings(max_examples=40, deadline=None)
@given(workloads, st.integers(1, 6), st.sampled_from([40, 200]))
def test_nothing_idles_and_nobody_starves(
    work: list[tuple[str, int, int, int, int]], max_running: int, num_pages: int
) -> None:
    ends_s: list[float] = []
    for is_shared in (True, False):
        runner = make_runner(num_pages, max_running=max_running)
        for serial, (tenant, num_prompt, max_tokens, num_steps, priority) in enumerate(work):
            for _ in range(num_steps):
                runner.step()  # asserts that something is planned while work is left
            add(runner, tenant if is_shared else "", serial, num_prompt, max_tokens, priority)
        runner.run(max_steps=5000)
        assert all(s.status is SequenceStatus.FINISHED for s in runner.sequences.values())
        ends_s.append(runner.now_s)
    assert ends_s[0] <= 1.5 * ends_s[1] + 0.2, "sharing takes longer than serving all as one tenant"


@pytest.mark.parametrize("seed", range(6))
def test_backlogged_tenants_are_served_alike(seed: int) -> None:
    draw = random.Random(seed)
    runner = make_runner(draw.choice([150, 2000]), max_running=draw.choice([2, 5, 8]))
    shapes = {t: (draw.choice([10, 100, 400]), draw.choice([2, 40, 200])) for t in "abc"}
    num_longest = max(sum(shape) for shape in shapes.values())
    total: Counter[str] = Counter()
    gaps: list[int] = []
    for serial in range(600):
        for tenant, shape in shapes.items():
            if num_waiting(runner, tenant) < 4:
                add(runner, tenant, serial, *shape)
        total += served(runner.step())
        if all(num_waiting(runner, tenant) for tenant in shapes):
            gaps.append(max(total.values()) - min(total.values()))
        else:
            total.clear()
        for key in [k for k, s in runner.sequences.items() if s.status is SequenceStatus.FINISHED]:
            del runner.sequences[key]
    assert len(gaps) > 300, "the tenants are not backlogged"
    assert max(gaps) <= 4 * (TURN + OUTPUT_WEIGHT * num_longest + 256)


def test_an_idle_tenant_gathers_no_credit() -> None:
    runner = make_runner()
    add(runner, "b", 0, 20, 2)
    for serial in range(30):
        add(runner, "a", serial, 20, ENDLESS)
    for _ in range(400):
        runner.step()
    for serial in range(1, 31):
        add(runner, "b", serial, 20, ENDLESS)
    for _ in range(10):
        runner.step()
    total: Counter[str] = Counter()
    for _ in range(200):
        total += served(runner.step())
    assert 0.8 <= total["a"] / total["b"] <= 1.25, total


def test_leaving_sheds_no_service() -> None:
    """A tenant that comes with one request at a time competes as one that has them all waiting."""
    runner = make_runner(max_running=1)
    for serial in range(500):
        add(runner, "a", serial, 100, 2)
    done = Counter[str]()
    serial, current = 0, add(runner, "b", 0, 400, 2)
    for _ in range(900):
        plan = runner.step()
        done += served(plan)
        if current.status is SequenceStatus.FINISHED:
            serial += 1
            current = add(runner, "b", serial, 400, 2)
    assert num_waiting(runner, "a") and done["b"] <= 1.1 * done["a"], done


def test_the_order_alternates_between_tenants() -> None:
    runner = make_runner(max_running=1)
    for tenant in "ab":
        for serial in range(4):
            add(runner, tenant, serial, 30)
    runner.run()
    order = sorted(runner.sequences.values(), key=lambda s: s.scheduled_s)
    tenants = [s.request.tenant_salt for s in order]
    assert all(left != right for left, right in pairwise(tenants)), tenants
