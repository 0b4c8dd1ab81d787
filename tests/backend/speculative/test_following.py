"""Reading along is left when drafts save less time than it takes, and tried again ever more seldom."""

from __future__ import annotations

from typing import ClassVar

import pytest

from backend.config import SpeculativeConfig
from backend.speculative.acceptance import Acceptance
from backend.speculative.adaptive import LengthPolicy
from backend.speculative.following import Follower, Following
from backend.speculative.ngram import NgramDrafter
from backend.speculative.prediction import PredictionDrafter
from backend.speculative.speculator import Speculator
from backend.types import Draft, DraftOptions, Sequence, SequenceStatus
from tests.backend.speculative.sequences import running

READ_S, STEP_S = 0.001, 0.005


class Clock:
    """Goes on when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Reader:
    """A drafter that is always right about the one token that it proposes, and reads in every step."""

    name = "reader"
    is_cheap = False

    def __init__(self) -> None:
        self.clock = Clock()
        self.following = Following(self.clock)
        self.num_asked = 0

    def read(self) -> None:
        with self.following.reading():
            self.clock.now_s += READ_S

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        self.num_asked += 1
        return [[7] for _ in sequences]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        pass

    def forget(self, sequence: Sequence) -> None:
        pass


def steps_until_rest(reader: Reader, saved_s: float, most: int = 1000, num_running: int = 1) -> int:
    """Steps that are read, each with so much saved."""
    for step in range(most):
        reader.following.begin_step(num_running)
        if reader.following.is_resting:
            return step
        reader.read()
        reader.following.save(saved_s)
    return most


def steps_of_rest(reader: Reader) -> int:
    count = 0
    while reader.following.is_resting:
        reader.following.pass_by(STEP_S)
        count += 1
    return count


def test_reading_goes_on_while_drafts_save_more_than_it_takes() -> None:
    assert steps_until_rest(Reader(), 1.1 * READ_S) == 1000
    assert steps_until_rest(Reader(), 0.9 * READ_S) < 100


def test_it_is_tried_again_and_rests_ever_longer_while_it_does_not_pay() -> None:
    reader = Reader()
    rests = []
    for _ in range(8):
        steps_until_rest(reader, 0.0)
        rests.append(steps_of_rest(reader))
    assert all(after == 2 * before for before, after in zip(rests[:4], rests[1:5], strict=True))
    assert rests[-1] == rests[-2], "there is a longest rest"
    steps_until_rest(reader, 3 * READ_S)
    steps_until_rest(reader, 0.0)
    assert steps_of_rest(reader) == rests[0], "it has paid since"


def after_a_rest() -> Reader:
    """That has read for nothing, and then rested for 512 steps of 5 ms."""
    reader = Reader()
    steps_until_rest(reader, 0.0)
    assert steps_of_rest(reader) == 512
    return reader


def test_a_trial_loses_a_small_share_of_the_rest_before_it() -> None:
    assert steps_until_rest(after_a_rest(), 0.0) == 13, "0.5 % of 2,560 ms"
    assert steps_until_rest(after_a_rest(), 0.5 * READ_S) == 26
    assert steps_until_rest(Reader(), 0.0) == 48, "unless it is the first"
    reader = after_a_rest()
    reader.following.pass_by(1000.0)
    assert steps_until_rest(reader, 0.0) == 13, "that was no rest"


def test_once_it_has_paid_it_may_lose_more_for_a_while() -> None:
    reader = after_a_rest()
    assert steps_until_rest(reader, 1.5 * READ_S, most=48) == 48
    assert steps_until_rest(reader, 0.0) == 48


def test_a_trial_ends_when_drafts_are_not_worth_having() -> None:
    for num_declined, is_over in ((2, False), (3, True)):
        reader = after_a_rest()
        steps_until_rest(reader, 0.0, most=2)
        for _ in range(num_declined):
            reader.following.decline()
            assert not reader.following.is_resting, "the step is not over"
        reader.following.begin_step(1)
        assert reader.following.is_resting == is_over


def test_what_ended_one_trial_is_not_held_against_the_next() -> None:
    reader = after_a_rest()
    for _ in range(3):
        reader.following.decline()
    reader.read()
    reader.following.begin_step(1)
    assert steps_of_rest(reader) == 1024
    reader.read()
    reader.following.begin_step(1)
    assert not reader.following.is_resting


def test_the_very_first_trial_goes_on_whatever_is_declined() -> None:
    reader = Reader()
    steps_until_rest(reader, 0.0, most=2)
    for _ in range(9):
        reader.following.decline()
    assert steps_until_rest(reader, 0.0) == 46


def test_when_it_has_paid_only_a_judgement_ends_it() -> None:
    reader = Reader()
    steps_until_rest(reader, 2 * READ_S, most=49)
    steps_until_rest(reader, 0.0, most=40)
    for _ in range(5):
        reader.following.decline()
    assert not reader.following.is_resting
    assert steps_until_rest(reader, 0.0) < 10


def test_drafts_worth_having_once_in_a_while_let_a_trial_go_on() -> None:
    reader = after_a_rest()
    for _ in range(40):
        steps_until_rest(reader, READ_S, most=1)
        reader.following.decline()
        assert not reader.following.is_resting


def test_what_drafts_lose_counts_against_it() -> None:
    assert steps_until_rest(Reader(), -READ_S) < 100


def test_steps_in_which_nothing_is_read_say_nothing() -> None:
    following = Following(Clock())
    for _ in range(1000):
        following.begin_step(1)
        assert not following.is_resting


class Always(LengthPolicy):
    """Asks for as many as it may, whatever it measures."""

    def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
        return list(limits)


def speculating(reader: Reader, *, adaptive: bool = True) -> tuple[Speculator, Sequence]:
    config = SpeculativeConfig(drafter="reader", max_tokens=1, adaptive=adaptive)
    speculator = Speculator(config, [reader], Always())
    sequence = running([1], [2])
    speculator.add(sequence)
    return speculator, sequence


def run(reader: Reader, drafted_s: float, *, adaptive: bool = True) -> int:
    """Steps read out of 400, of which every other has a draft and takes so long; plain ones take 10 ms."""
    speculator, sequence = speculating(reader, adaptive=adaptive)
    num_read = 0
    for step in range(400):
        num_drafts = len(speculator.propose(1)) if step % 2 else 0
        if not num_drafts and adaptive:
            reader.following.begin_step(1)
        is_reading = not reader.following.is_resting
        if is_reading:
            reader.read()
            num_read += 1
        if num_drafts:
            speculator.observe(sequence, 1, 1)
        speculator.measure(1, num_drafts, (drafted_s if num_drafts else 0.010) + is_reading * READ_S)
    return num_read


def test_the_speculator_says_what_drafts_save_and_leaves_reading_out_of_what_steps_take() -> None:
    assert isinstance(Reader(), Follower)
    # Two tokens in 15 ms instead of 20: 5 ms saved for the 2 ms that two steps were read.
    assert run(Reader(), 0.015) == 400
    # In 18.5 ms: 1.5 ms saved. It would seem to be 2.5 if what reading takes counted for plain steps as well.
    assert run(Reader(), 0.0185) < 200


class Never(LengthPolicy):
    """Wants no drafts."""

    def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
        return [0] * len(limits)


def test_who_wants_no_drafts_ends_the_trial_unless_plain_steps_are_to_be_measured() -> None:
    reader = after_a_rest()
    speculator = Speculator(SpeculativeConfig(drafter="reader"), [reader], Never())
    speculator.add(running([1], [2]))
    num_asked = 0
    while not reader.following.is_resting and num_asked < 40:
        num_asked += not speculator.is_asleep
        speculator.propose(1)
        with reader.following.reading():
            reader.clock.now_s += 0.1 * READ_S
        speculator.measure(1, 0, 0.010)
    assert not speculator.policy.costs.plain_steps_wanted(1)
    assert num_asked == 1 + 3, "plain steps were to be measured; then it said no thrice"


class Ranks(LengthPolicy):
    """Answers each rank's question as told."""

    answers: ClassVar[list[int]] = []

    def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
        return [min(self.answers.pop(0), limit) for limit in limits]


def asked_twice(answers: list[int]) -> tuple[Reader, Speculator, Ranks]:
    """Of two requests one brings a prediction: for it, the reader is asked in the second place."""
    reader, policy = after_a_rest(), Ranks()
    for _ in range(3):
        policy.costs.observe(2, 0, STEP_S)
    config = SpeculativeConfig(drafter="reader", max_tokens=1)
    speculator = Speculator(config, [PredictionDrafter(), reader], policy)
    speculator.add(running([1], [2]))
    speculator.add(running([1], [2], prediction_token_ids=[9, 9, 9]))
    policy.answers[:] = answers
    assert len(speculator.propose(2)) == sum(answers) and not policy.answers
    return reader, speculator, policy


@pytest.mark.parametrize(("answers", "num_declined"), [([0, 0], 1), ([0, 1], 0), ([1, 0], 0)])
def test_what_is_declined_counts_once_a_step_and_not_where_others_have_drafts(
    answers: list[int], num_declined: int
) -> None:
    reader, _, _ = asked_twice(answers)
    assert reader.following._account._num_declined == num_declined


@pytest.mark.parametrize(
    ("answers", "has_prompts", "num_declined"), [([1, 0], False, 1), ([0, 0], False, 2), ([0, 0], True, 1)]
)
def test_each_step_declines_for_itself(answers: list[int], has_prompts: bool, num_declined: int) -> None:
    reader, speculator, policy = asked_twice(answers)
    policy.answers[:] = [0, 0]
    speculator._wake_step = 0
    speculator.propose(2, has_prompts=has_prompts)
    assert reader.following._account._num_declined == num_declined, "beside prompts it is not asked"


def test_a_rest_goes_by_the_time_of_all_steps() -> None:
    reader = Reader()
    speculator, _ = speculating(reader)
    steps_until_rest(reader, 0.0)
    for step in range(512):
        speculator.propose(1, has_prompts=step % 2 > 0)
        speculator.measure(1, 0, 0.005, num_prompt_tokens=step % 2)
    assert not reader.following.is_resting
    assert steps_until_rest(reader, 0.0) == 13


def test_where_lengths_are_fixed_it_never_rests() -> None:
    assert run(Reader(), 0.050, adaptive=False) == 400


def test_only_those_are_followed_who_may_ask() -> None:
    reader = Reader()
    speculator, sequence = speculating(reader)
    other = running([1], [2], draft=DraftOptions(drafter="none"))
    speculator.add(other)
    assert reader.following.sequences == {sequence}
    sequence.status = SequenceStatus.WAITING
    speculator.forget(sequence)
    assert reader.following.sequences == {sequence}, "a preempted one comes back"
    sequence.status = SequenceStatus.FINISHED
    speculator.forget(sequence)
    assert not reader.following.sequences


def admitted(following: Following, count: int) -> int:
    """How many of so many new sequences are read."""
    return sum(following.admit(running([1], [2])) for _ in range(count))


def test_until_reading_has_paid_few_of_many_sequences_are_read() -> None:
    reader = Reader()
    assert admitted(reader.following, 4) == 4
    assert admitted(reader.following, 16) == 4, "one in four"
    steps_until_rest(reader, 2 * READ_S, most=60)
    assert admitted(reader.following, 16) == 16
    steps_until_rest(reader, 0.0)
    assert reader.following.is_resting
    assert admitted(reader.following, 16) == 16, "they are read in smaller batches alone"
    steps_of_rest(reader)
    assert admitted(reader.following, 16) == 4
    reader.following.sequences.clear()
    assert admitted(reader.following, 3) == 3, "so many at least"


def test_every_third_trial_reads_all() -> None:
    """What few drafts take may be what many do: then only many pay."""
    reader = Reader()
    admitted(reader.following, 4)
    found = []
    for _ in range(6):
        found.append(admitted(reader.following, 16))
        steps_until_rest(reader, 0.0)
        steps_of_rest(reader)
    assert found == [4, 4, 16, 4, 4, 16]


def test_who_is_not_read_goes_without_drafts() -> None:
    reader = Reader()
    speculator, _ = speculating(reader)
    others = [running([1], [2]) for _ in range(5)]
    for sequence in others:
        speculator.add(sequence)
    assert len(speculator.propose(6)) == 4
    assert reader.following.sequences.isdisjoint(others[-2:])
    for sequence in others:
        sequence.status = SequenceStatus.FINISHED
        speculator.forget(sequence)
    reader, everybody = Reader(), [running([1], [2]) for _ in range(9)]
    speculator, first = speculating(reader, adaptive=False)
    for sequence in everybody:
        speculator.add(sequence)
    assert reader.following.sequences == {first, *everybody}, "lengths are fixed"


def test_while_reading_rests_hardly_anybody_is_looked_at() -> None:
    reader = Reader()
    speculator, _ = speculating(reader)
    steps_until_rest(reader, 0.0)
    speculator.propose(1)
    assert speculator.is_asleep


def asleep_while_it_rests() -> tuple[Reader, Speculator, Sequence]:
    reader = Reader()
    speculator, sequence = speculating(reader)
    steps_until_rest(reader, 0.0)
    speculator.propose(1)
    assert speculator.is_asleep
    return reader, speculator, sequence


def test_while_reading_rests_neither_ends_nor_new_requests_wake_anybody() -> None:
    reader, speculator, sequence = asleep_while_it_rests()
    for _ in range(2):
        speculator.add(running([1], [2]))
    sequence.status = SequenceStatus.FINISHED
    speculator.forget(sequence)
    assert speculator.is_asleep
    while reader.following.is_resting:
        speculator.propose(1)
        speculator.measure(1, 0, STEP_S)
    first, _ = speculator.propose(1)
    speculator._wake_step = 1000
    first.status = SequenceStatus.FINISHED
    speculator.forget(first)
    assert not speculator.is_asleep
    speculator._wake_step = 1000
    speculator.add(running([1], [2]))
    assert not speculator.is_asleep


def test_each_size_of_the_batch_has_a_rest_of_its_own() -> None:
    reader = Reader()
    steps_until_rest(reader, 0.0)
    found = []
    for num_running in (2, 3, 4, 1):
        reader.following.begin_step(num_running)
        found.append(reader.following.is_resting)
    assert found == [False, False, False, True]
    assert [steps_until_rest(reader, 0.0, num_running=n) for n in (4, 3, 5)] == [48, 0, 48], "3 and 4 are one"
    reader.following.begin_step(1)
    assert steps_of_rest(reader) == 512, "others' steps are no part of it"


def test_a_prompt_counts_in_the_batch_that_it_will_be_part_of() -> None:
    """Else it is read at the cost of a size in which nothing is ever saved."""
    reader, speculator, _ = asleep_while_it_rests()
    for num_running, num_joining, is_resting in ((0, 1, True), (0, 2, False), (1, 3, False), (1, 0, True)):
        speculator.propose(num_running, num_joining=num_joining)
        assert reader.following.is_resting == is_resting
    assert set(reader.following._accounts) == {0, 1, 2}
    speculator.propose(0)
    assert reader.following.is_resting


def test_in_a_batch_of_another_size_it_is_asked_again() -> None:
    reader, speculator, sequence = asleep_while_it_rests()
    others = [running([1], [2]) for _ in range(3)]
    for other in others:
        speculator.add(other)
    assert speculator.is_asleep
    assert not speculator.propose(4), "it wakes"
    assert set(speculator.propose(4)) == {sequence, *others}
    speculator.propose(1)
    assert reader.following.is_resting and reader.num_asked == 1


def test_who_has_another_drafter_is_asked_while_reading_rests() -> None:
    _, speculator, sequence = asleep_while_it_rests()
    speculator._drafters["ngram"] = NgramDrafter()
    looping = running([1, 2, 3, 4] * 5, [1, 2], draft=DraftOptions(drafter="ngram"))
    speculator.add(looping)
    assert list(speculator.propose(1)) == [looping]
    speculator._wake_step = 1000
    sequence.status = SequenceStatus.FINISHED
    speculator.forget(sequence)
    assert not speculator.is_asleep


def test_who_has_another_drafter_counts_before_it_may_be_asked() -> None:
    _, speculator, sequence = asleep_while_it_rests()
    speculator._drafters["ngram"] = NgramDrafter()
    waiting = running([1, 2, 3, 4] * 5, [1, 2], draft=DraftOptions(drafter="ngram"))
    waiting.status = SequenceStatus.WAITING
    speculator.add(waiting)
    speculator.propose(1)
    speculator._wake_step = 1000
    sequence.status = SequenceStatus.FINISHED
    speculator.forget(sequence)
    assert not speculator.is_asleep


def test_where_lengths_are_fixed_reading_is_no_part_of_later_steps() -> None:
    reader = Reader()
    speculator, _ = speculating(reader, adaptive=False)
    reader.read()
    speculator.propose(1)
    assert not reader.following.step_s


def test_rests_are_no_misses() -> None:
    _, speculator, sequence = asleep_while_it_rests()
    for _ in range(100):
        speculator.propose(1)
    assert speculator._active[sequence].misses == 0


def test_beside_prompts_no_step_is_measured() -> None:
    speculator, _ = speculating(Reader())
    for _ in range(5):
        speculator.measure(1, 0, 1.0, num_prompt_tokens=1)
    assert speculator.policy.costs.plain_steps_wanted(1) == 3


def test_what_others_save_is_not_a_readers() -> None:
    reader = Reader()
    speculator, sequence = speculating(reader)
    speculator.measure(1, 0, 0.010)
    speculator.propose(1)
    for _ in range(100):
        reader.following.begin_step(1)
        reader.read()
        # A grammar's forced tokens are drafts of nobody.
        speculator.measure(1, 1, 0.005)
    assert reader.following.is_resting


def test_who_rests_is_not_asked() -> None:
    reader = Reader()
    speculator, sequence = speculating(reader)
    assert speculator.propose(1) == {sequence: [7]}
    steps_until_rest(reader, 0.0)
    assert reader.following.is_resting and reader.num_asked == 1
    assert speculator.propose(1) == {} and reader.num_asked == 1
    steps_of_rest(reader)
    found = [speculator.propose(1) for _ in range(8)]  # it may have been put to sleep
    assert {sequence: [7]} in found and reader.num_asked > 1
