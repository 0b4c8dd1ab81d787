"""Random workloads on a fake runner that checks every plan, every slot and every invariant at each step."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.errors import PromptTooLong, QueueFull
from backend.kv import checkpoints
from backend.scheduler import SchedulerConfig
from backend.types import SamplingParams, SequenceStatus
from tests.backend.scheduler.fake_runner import FakeRunner, expected_output

PREFIXES: tuple[list[int], ...] = ([], [3] * 16, [3] * 16 + [5] * 24, list(range(1, 29)) * 3)


@dataclass(frozen=True)
class Machine:
    num_pages: int
    max_running: int
    max_batch_tokens: int
    max_queue: int
    prefix_cache: bool
    num_checkpoints: int = 0
    windows: tuple[int, int] | None = None  # pages and tokens

    def runner(self) -> FakeRunner:
        config = SchedulerConfig(
            max_model_tokens=200,
            max_batch_tokens=self.max_batch_tokens,
            max_running=self.max_running,
            max_queue=self.max_queue,
        )
        return FakeRunner(config, self.num_pages, self.prefix_cache, self.num_checkpoints, self.windows)


machines = st.builds(
    Machine,
    num_pages=st.integers(1, 24),
    max_running=st.integers(1, 6),
    max_batch_tokens=st.sampled_from([16, 17, 40, 64, 200]),
    max_queue=st.integers(1, 8),
    prefix_cache=st.sampled_from([True, True, True, False]),
)


@dataclass(frozen=True)
class Addition:
    prefix: int
    num_own: int  # prompt tokens after the prefix
    max_tokens: int
    salt: str
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    priority: int = 0

    def apply(self, runner: FakeRunner, serial: int) -> None:
        prompt = PREFIXES[self.prefix] + [1 + (serial % 3 + i) % 28 for i in range(self.num_own)]
        params = SamplingParams(
            max_tokens=self.max_tokens, min_tokens=self.min_tokens, prompt_logprobs=self.prompt_logprobs
        )
        with contextlib.suppress(QueueFull, PromptTooLong):
            runner.add(str(serial), prompt or [1], params, self.salt, self.priority)


additions = st.builds(
    Addition,
    prefix=st.integers(0, len(PREFIXES) - 1),
    num_own=st.integers(0, 50),
    max_tokens=st.integers(1, 60),
    salt=st.sampled_from(["", "", "b"]),
    min_tokens=st.sampled_from([0, 1]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
    priority=st.sampled_from([0, 0, 1]),
)
steps = st.integers(1, 12)
aborts = st.tuples(st.integers(0, 50))


def abort(runner: FakeRunner, choice: int) -> None:
    alive = [s for s in runner.sequences.values() if s.status is not SequenceStatus.FINISHED]
    if not alive:
        return
    sequence = alive[choice % len(alive)]
    free_pages = runner.kv.free_pages
    assert runner.scheduler.abort(sequence.request.request_id) is sequence
    assert (sequence.pages, sequence.row, sequence.finish_reason) == ([], -1, "abort")
    assert runner.kv.free_pages >= free_pages
    runner.scheduler.check_invariants()


def check_ended(runner: FakeRunner) -> None:
    assert runner.kv.free_pages == runner.kv.num_pages
    assert (runner.scheduler.num_running, runner.scheduler.num_waiting) == (0, 0)
    for sequence in runner.sequences.values():
        assert sequence.status is SequenceStatus.FINISHED
        output = sequence.tokens[sequence.num_prompt_tokens :]
        wanted = expected_output(sequence.request)
        if sequence.finish_reason == "abort":
            assert output == wanted[: len(output)]
        else:
            assert output == wanted
    if not any(sequence.num_preemptions for sequence in runner.sequences.values()):
        assert runner.scheduler.preemptions_total == 0


@settings(max_examples=300, deadline=None)
@given(machines, st.lists(st.one_of(additions, additions, steps, aborts), max_size=40))
def test_every_admitted_request_ends_with_its_own_text(
    machine: Machine, works: list[Addition | int | tuple[int]]
) -> None:
    play(machine, works)


@settings(max_examples=150, deadline=None)
@given(
    st.builds(replace, machines, num_checkpoints=st.integers(1, 6)),
    st.lists(st.one_of(additions, additions, steps, aborts), max_size=40),
)
def test_every_request_goes_on_from_its_own_state(
    machine: Machine, works: list[Addition | int | tuple[int]]
) -> None:
    with close_checkpoints():
        play(machine, works)


@st.composite
def windowed_machines(draw: st.DrawFn) -> Machine:
    """With pages for two windows at least, as the engine has, but often too few for all that runs."""
    window = draw(st.sampled_from([1, 2, 15, 16, 17, 18, 33, 60, 150]))
    pages = draw(st.integers(2 * (-(-window // 16) + 2), 24))
    return replace(draw(machines), windows=(pages, window))


@settings(max_examples=150, deadline=None)
@given(
    windowed_machines(),
    st.lists(st.one_of(additions, additions, steps, aborts), max_size=40),
)
def test_every_request_has_its_own_window(machine: Machine, works: list[Addition | int | tuple[int]]) -> None:
    play(machine, works)


@contextlib.contextmanager
def close_checkpoints() -> Iterator[None]:
    """At every page, so that short prompts have some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "CHECKPOINT_TOKENS", 16)
        patch.setattr(checkpoints, "INTERVAL_TOKENS", 32)
        yield


def play(machine: Machine, works: list[Addition | int | tuple[int]]) -> None:
    runner = machine.runner()
    for serial, work in enumerate(works):
        if isinstance(work, Addition):
            work.apply(runner, serial)
        elif isinstance(work, tuple):
            abort(runner, work[0])
        else:
            for _ in range(work):
                runner.step()
    runner.run(max_steps=5_000)
    check_ended(runner)


@pytest.mark.parametrize(("num_pages", "window_pages"), [(40, 13), (200, 20), (17, 17)])
def test_thousands_of_random_steps_leak_no_window(num_pages: int, window_pages: int) -> None:
    play_at_random(Machine(num_pages, 6, 64, 20, prefix_cache=True, windows=(window_pages, 40)))


@pytest.mark.parametrize(("num_pages", "num_checkpoints"), [(13, 0), (17, 0), (30, 0), (17, 4), (30, 20)])
def test_thousands_of_random_steps_leak_nothing(num_pages: int, num_checkpoints: int) -> None:
    with close_checkpoints():
        play_at_random(Machine(num_pages, 6, 64, 20, prefix_cache=True, num_checkpoints=num_checkpoints))


def play_at_random(machine: Machine) -> None:
    draw, runner = random.Random(machine.num_pages), machine.runner()
    for serial in range(1_500):
        if draw.random() < 0.35:
            addition = Addition(
                prefix=draw.randrange(len(PREFIXES)),
                num_own=draw.randrange(50),
                max_tokens=draw.randrange(1, 100),
                salt=draw.choice("ab"),
                min_tokens=draw.choice([0, 1]),
                prompt_logprobs=draw.choice([None] * 9 + [0]),
            )
            addition.apply(runner, serial)
        if draw.random() < 0.05:
            abort(runner, draw.randrange(100))
        runner.step()
    runner.run()
    check_ended(runner)
    assert runner.scheduler.preemptions_total > 5  # the pool is small on purpose
    assert runner.kv.prefix_hit_tokens_total > 0
