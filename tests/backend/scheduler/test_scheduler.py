from __future__ import annotations

import pytest

from backend.errors import PromptTooLong, QueueFull, RequestError
from backend.scheduler import SchedulerConfig
from backend.types import Plan, Request, SamplingParams, Sequence, SequenceStatus
from tests.backend.scheduler.fake_runner import FakeRunner


def make_runner(num_pages: int = 1024, **settings: int) -> FakeRunner:
    limits = {"max_model_tokens": 8192, "max_batch_tokens": 512, "max_running": 8} | settings
    runner = FakeRunner(SchedulerConfig(**limits), num_pages)
    runner.scheduler.budget.observe(0, 512, 512 * runner.prompt_token_s)  # skip the slow start
    return runner


def endless(max_tokens: int) -> SamplingParams:
    """Parameters with which the fake model never samples EOS."""
    return SamplingParams(max_tokens=max_tokens, min_tokens=1)


def prompt(num_tokens: int, first: int = 0) -> list[int]:
    return [first, *range(1, num_tokens)]


def tokens_by_id(plan: Plan) -> dict[str, int]:
    return {chunk.sequence.request.request_id: chunk.num_tokens for chunk in plan.chunks}


def start_decoding(runner: FakeRunner, num_streams: int, max_tokens: int = 2000) -> None:
    for index in range(num_streams):
        runner.add(f"stream {index}", prompt(20, 100 + index), endless(max_tokens))
    for _ in range(6):
        runner.step()


def test_decodes_keep_their_pace_while_a_long_prompt_prefills() -> None:
    runner = make_runner(max_batch_tokens=2048)
    start_decoding(runner, 4)
    long = runner.add("long", prompt(4000), endless(1))
    durations: list[float] = []
    while long.status is not SequenceStatus.FINISHED:
        before_s = runner.now_s
        plan = runner.step()
        durations.append(runner.now_s - before_s)
        assert sum(key.startswith("stream") for key in tokens_by_id(plan)) == 4
    assert max(durations) <= 3 * runner.decode_s
    assert len(durations) < 60  # and the prompt is not starved


def test_has_prompts_while_one_is_computed_or_can_be_admitted() -> None:
    runner = make_runner(max_running=2)
    assert not runner.scheduler.has_prompts
    runner.add("long", prompt(2000), endless(100))
    assert runner.scheduler.has_prompts, "it waits, and there is room"
    runner.step()
    assert runner.scheduler.has_prompts, "half of it is computed"
    start_decoding(runner, 1)
    while any(count > 1 for count in tokens_by_id(runner.step()).values()):
        pass
    runner.add("third", prompt(20, 7), endless(1))
    assert not runner.scheduler.has_prompts, "it waits for one of the two to end"


def test_long_prompts_progress_together() -> None:
    runner = make_runner()
    for index in range(4):
        runner.add(str(index), prompt(2000, index), endless(1))
    for _ in range(10):
        assert tokens_by_id(runner.step()) == {str(index): 128 for index in range(4)}


def test_tokens_left_by_short_prompts_go_to_long_ones() -> None:
    runner = make_runner()
    runner.add("long", prompt(2000, 1), endless(1))
    runner.add("short", prompt(10, 2), endless(1))
    assert tokens_by_id(runner.step()) == {"short": 10, "long": 502}


@pytest.mark.parametrize("num_streams", [0, 2])
def test_a_short_prompt_does_not_wait_for_many_long_ones(num_streams: int) -> None:
    runner = make_runner()
    start_decoding(runner, num_streams)
    for index in range(5):
        runner.add(f"long {index}", prompt(3000, index), endless(1))
    runner.step()
    short = runner.add("short", prompt(16, 9), endless(1))
    for _ in range(4):
        runner.step()
    assert short.status is SequenceStatus.FINISHED


def test_the_oldest_long_prompt_is_not_starved_by_short_ones() -> None:
    runner = make_runner(max_batch_tokens=16)
    long = runner.add("long", prompt(400, 1), endless(1))
    for serial in range(60):
        runner.add(f"short {serial}", prompt(16, 2 + serial), endless(1))
        runner.step()
    assert long.status is SequenceStatus.FINISHED


def test_equal_prompts_are_computed_once() -> None:
    runner = make_runner()
    siblings = [runner.add(str(index), prompt(700), endless(5)) for index in range(4)]
    computed = 0
    while runner.scheduler.has_work:
        computed += sum(size for size in tokens_by_id(runner.step()).values() if size > 1)
    # 43 full pages once, and the tokens after them four times.
    assert computed == 700 + 3 * (700 - 688)
    assert [sibling.num_cached_tokens for sibling in siblings] == [0, 688, 688, 688]
    assert len({tuple(sibling.tokens) for sibling in siblings}) == 1


def test_a_full_prefix_hit_computes_the_last_token_again() -> None:
    runner = make_runner()
    runner.add("cold", prompt(64), endless(4))
    runner.run()
    warm = runner.add("warm", prompt(64), endless(4))
    (chunk,) = runner.step().chunks
    assert (chunk.start, chunk.end) == (48, 64) and warm.num_cached_tokens == 48
    runner.run()
    assert warm.tokens == runner.sequences["cold"].tokens


def test_a_second_turn_finds_prompt_and_output_of_the_first() -> None:
    runner = make_runner()
    first = runner.add("first", prompt(40), endless(30))
    runner.run()
    second = runner.add("second", [*first.tokens, 7, 7], endless(1))
    runner.run()
    assert second.num_cached_tokens == 64  # 69 tokens of the first turn were computed


def test_the_newest_is_preempted_and_goes_to_the_front_of_the_queue() -> None:
    runner = make_runner(num_pages=6, max_model_tokens=96)
    old = runner.add("old", prompt(30, 1), endless(60))
    new = runner.add("new", prompt(20, 2), endless(40))
    runner.step()
    runner.add("later", prompt(40, 3), endless(2))
    plan = runner.step()
    while not plan.preempted:
        plan = runner.step()
    assert plan.preempted == [new] and (new.status, new.row) == (SequenceStatus.WAITING, -1)
    assert old.status is SequenceStatus.RUNNING
    num_tokens = len(new.tokens)
    while new.status is SequenceStatus.WAITING:
        runner.step()
        assert runner.sequences["later"].status is SequenceStatus.WAITING
    assert new.num_preemptions == 1 == runner.scheduler.preemptions_total
    assert new.num_cached_tokens == 0 and len(new.tokens) >= num_tokens
    runner.run()


def test_admission_keeps_pages_for_running_sequences_to_grow() -> None:
    runner = make_runner(num_pages=6, max_model_tokens=96)
    runner.add("before", prompt(65, 1), endless(1))
    runner.run()
    runner.add("running", prompt(10, 2), endless(20))
    runner.step()
    again = runner.add("again", prompt(65, 1), endless(1))
    assert (runner.kv.free_pages, runner.kv.cached_pages) == (5, 4)
    runner.step()  # its 4 cached pages and 1 new one would leave no page to grow into
    assert again.status is SequenceStatus.WAITING
    runner.run()
    assert again.num_cached_tokens == 64 and runner.scheduler.preemptions_total == 0


def steal_pages(runner: FakeRunner) -> None:
    """Allocate all free pages, as if other sequences had grown faster than admission expected."""
    request = Request(request_id="thief", prompt_token_ids=[1], params=endless(1))
    runner.kv.grow(Sequence(request, [1], 1), runner.kv.free_pages * 16)
    assert runner.kv.free_pages == 0


def test_deadlocked_prefills_preempt_all_but_the_oldest() -> None:
    runner = make_runner(num_pages=40, max_batch_tokens=64)
    old, new = (runner.add(str(index), prompt(200, index), endless(1)) for index in range(2))
    runner.step()
    steal_pages(runner)
    plan = runner.scheduler.schedule()
    assert plan.preempted == [new] and [chunk.sequence for chunk in plan.chunks] == [old]
    assert not new.pages


def test_preempting_every_sequence_leaves_no_page_allocated() -> None:
    runner = make_runner(num_pages=40)
    first = runner.add("first", prompt(47), endless(9))
    runner.step()
    second = runner.add("second", prompt(47), endless(9))
    runner.step()  # decode-only, to measure: the second sequence has only shared pages
    assert second.pages == first.pages[:2]
    steal_pages(runner)
    plan = runner.scheduler.schedule()
    assert plan.preempted == [second, first] and not plan.chunks
    assert not first.pages and not second.pages and runner.scheduler.num_running == 0


def test_rows_last_as_long_as_a_sequence_runs() -> None:
    runner = make_runner(max_running=2)
    first, second, third = (runner.add(str(i), prompt(20, i), endless(4 + 4 * i)) for i in range(3))
    runner.step()
    rows = (first.row, second.row)
    assert set(rows) == {0, 1} and (third.row, runner.scheduler.num_waiting) == (-1, 1)
    assert runner.scheduler.num_joining == 0, "there is no row for it"
    while first.status is SequenceStatus.RUNNING:
        assert (first.row, second.row) == rows
        runner.step()
    runner.step()
    assert (second.row, third.row) == (rows[1], rows[0])


def test_aborting_frees_everything_at_once() -> None:
    runner = make_runner(max_running=1)
    running = runner.add("running", prompt(100), endless(50))
    waiting = runner.add("waiting", prompt(100), endless(50))
    runner.step()
    assert runner.scheduler.abort("waiting") is waiting and runner.scheduler.abort("running") is running
    assert runner.scheduler.abort("running") is None and runner.scheduler.abort("never seen") is None
    assert not runner.scheduler.has_work and runner.kv.free_pages == 1024
    assert running.finish_reason == waiting.finish_reason == "abort"
    runner.scheduler.check_invariants()


def test_arrival_scheduled_and_first_token_times() -> None:
    runner = make_runner()
    runner.now_s = 5.0
    sequence = runner.add("a", prompt(600), endless(3))
    assert (sequence.arrival_s, sequence.scheduled_s) == (5.0, -1.0)
    runner.step()
    assert sequence.scheduled_s == 5.0 and sequence.first_token_s == -1.0
    runner.step()
    assert sequence.first_token_s == runner.now_s
    runner.run()
    assert sequence.first_token_s < runner.now_s


def test_a_prompt_of_one_token() -> None:
    runner = make_runner()
    sequence = runner.add("a", [1], endless(20))
    runner.run()
    assert sequence.num_output_tokens == 20 and sequence.scheduled_s == 0.0


def test_a_prompt_that_can_never_fit_is_refused_with_numbers() -> None:
    runner = make_runner(num_pages=4, max_model_tokens=100)
    with pytest.raises(PromptTooLong) as refusal:
        runner.add("a", prompt(90), endless(11))
    assert str(refusal.value) == (
        "the prompt has 90 tokens and max_tokens is 11, 101 in all, but the model's context holds 100; "
        "shorten the prompt or lower max_tokens"
    )
    assert refusal.value.param == "max_tokens"
    with pytest.raises(PromptTooLong, match="the KV memory holds 64"):
        runner.add("b", prompt(60), endless(6))
    fits = runner.add("c", prompt(60), endless(5))
    runner.run()
    assert fits.finish_reason == "length"
    with pytest.raises(PromptTooLong) as refusal:
        runner.add("d", prompt(100), endless(1))
    assert refusal.value.param is None
    with pytest.raises(RequestError, match="0 tokens"):
        runner.add("e", [], endless(1))


def test_duplicate_ids_and_the_queue_bound() -> None:
    runner = make_runner(max_running=1, max_queue=2)
    runner.add("a", prompt(20), endless(5))
    with pytest.raises(RequestError, match="request id 'a' is in use"):
        runner.add("a", prompt(20), endless(5))
    runner.step()
    with pytest.raises(RequestError, match="request id 'a' is in use"):
        runner.add("a", prompt(20), endless(5))
    runner.add("b", prompt(20), endless(5))
    runner.add("c", prompt(20), endless(5))
    with pytest.raises(QueueFull):
        runner.add("d", prompt(20), endless(5))
    runner.run()
    runner.add("a", prompt(20), endless(5))


def start_background(runner: FakeRunner, num_sequences: int, prompt_tokens: int = 20) -> list[Sequence]:
    sequences = [
        runner.add(f"background {i}", prompt(prompt_tokens, 500 + i), endless(60), priority=1)
        for i in range(num_sequences)
    ]
    for _ in range(12):
        runner.step()
    return sequences


def test_an_online_prompt_pauses_the_background_and_its_decodes_do_not() -> None:
    runner = make_runner()
    start_background(runner, 4)
    runner.add("online", prompt(1000), endless(5))
    assert tokens_by_id(runner.step()) == {"online": 512}
    assert tokens_by_id(runner.step()) == {"online": 488}
    assert set(tokens_by_id(runner.step())) == {"online", *(f"background {i}" for i in range(4))}


def test_the_background_adds_its_share_to_the_time_of_online_decodes() -> None:
    runner = make_runner()
    runner.prompt_token_s = 0.002
    online = runner.add("online", prompt(20), endless(1000))
    background = [runner.add(f"b{i}", prompt(300, 500 + i), endless(60), priority=1) for i in range(3)]
    while online.status is not SequenceStatus.FINISHED:
        runner.step()
    alone_s = 1001 * runner.decode_s
    assert 1.05 * alone_s <= runner.now_s <= 1.15 * alone_s
    assert any(s.num_output_tokens for s in background)
    runner.run()
    assert all(s.status is SequenceStatus.FINISHED for s in background)


def test_prompts_of_the_background_make_short_steps() -> None:
    runner = make_runner()
    start_background(runner, 2, prompt_tokens=4000)
    before_s = runner.now_s
    runner.step()
    limit_s = runner.config.max_background_step_s
    assert runner.now_s - before_s <= runner.decode_s + 1.2 * limit_s


def test_online_sequences_take_rows_of_the_background_and_give_them_back() -> None:
    runner = make_runner(max_running=2)
    background = start_background(runner, 3)
    assert [s.status is SequenceStatus.RUNNING for s in background] == [True, True, False]
    online = runner.add("online", prompt(20), endless(3))
    assert runner.step().preempted == [background[1]]
    assert tokens_by_id(runner.step()) == {"online": 20}
    runner.run()
    assert online.num_preemptions == 0
    assert all(s.status is SequenceStatus.FINISHED for s in background)


def test_online_sequences_take_pages_of_the_background() -> None:
    runner = make_runner(num_pages=24)
    background = start_background(runner, 2, prompt_tokens=100)
    online = runner.add("online", prompt(200), endless(40))
    assert runner.step().preempted == [background[1]]
    while online.status is not SequenceStatus.FINISHED:
        runner.step()
    assert online.num_preemptions == 0
    runner.run()
    assert all(s.status is SequenceStatus.FINISHED for s in background)


def test_background_sequences_wait_behind_online_ones_and_fill_a_queue_of_their_own() -> None:
    runner = make_runner(max_running=1, max_queue=2)
    for index in range(2):
        runner.add(f"background {index}", prompt(20, index), endless(2), priority=1)
    with pytest.raises(QueueFull):
        runner.add("third", prompt(20, 7), endless(2), priority=1)
    first = runner.add("first", prompt(20, 5), endless(2))
    assert tokens_by_id(runner.step()) == {"first": 20}
    runner.run()
    assert first.num_preemptions == 0
