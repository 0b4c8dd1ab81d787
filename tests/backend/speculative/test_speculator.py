"""Who is asked for drafts, when, and what is learned from it; hidden-state capture while it pays."""

from __future__ import annotations

import pytest

from backend.config import SpeculativeConfig
from backend.errors import RequestError
from backend.speculative import MAX_DOUBLINGS, PAUSE_STEPS, PRIOR_SAMPLES
from backend.speculative.draft_length import SequenceAcceptance
from backend.speculative.drafter import Capture, CapturingDrafter
from backend.speculative.ngram import NgramDrafter
from backend.speculative.prediction import PredictionDrafter
from backend.speculative.speculator import Speculator
from backend.speculative.tree import depth_of
from backend.types import Draft, DraftOptions, DraftTree, GrammarSpec, Sequence, SequenceStatus
from tests.backend.speculative.sequences import running

LOOP = [1, 2, 3, 4] * 5
LONGEST_POLL_STEPS = 1 << MAX_DOUBLINGS
STEP_S = 0.010
PLAIN_STEPS = int(PRIOR_SAMPLES)


def new_speculator(drafter: str = "ngram", *, adaptive: bool = False) -> Speculator:
    config = SpeculativeConfig(drafter=drafter, max_tokens=4, adaptive=adaptive)
    return Speculator(config, [NgramDrafter(), PredictionDrafter()])


def drafted(speculator: Speculator, sequence: Sequence) -> Draft:
    speculator.add(sequence)
    return speculator.propose(1).get(sequence, [])


def test_the_models_drafter_serves_requests_that_do_not_say() -> None:
    assert drafted(new_speculator(), running(LOOP, [1, 2])) == [3, 4, 1, 2]
    assert drafted(new_speculator("none"), running(LOOP, [1, 2])) == []


def test_a_request_may_choose() -> None:
    def asked(**options: object) -> Draft:
        sequence = running(LOOP, [1, 2], draft=DraftOptions(**options))  # type: ignore[arg-type]
        return drafted(new_speculator("none" if options.get("drafter") == "ngram" else "ngram"), sequence)

    assert asked(drafter="ngram") == [3, 4, 1, 2]
    assert asked(drafter="none") == []
    assert asked(max_tokens=2) == [3, 4]
    assert asked(max_tokens=50) == [3, 4, 1, 2], "no more than the model's"
    assert asked(max_tokens=0) == []


def test_a_prediction_comes_first_and_the_drafter_where_it_has_left() -> None:
    speculator = new_speculator()
    assert drafted(speculator, running(LOOP, [1, 2], prediction_token_ids=[1, 2, 9, 9])) == [9, 9]
    assert drafted(speculator, running(LOOP, [1, 2], prediction_token_ids=[7, 7, 9, 9])) == [3, 4, 1, 2]
    more = {"prediction_token_ids": [1, 2, 9, 9, 9, 9, 9], "draft": DraftOptions(max_tokens=5)}
    assert drafted(speculator, running(LOOP, [1, 2], **more)) == [9] * 5, "here more than the model's"
    only = running(LOOP, [1, 2], prediction_token_ids=[1, 2, 9], draft=DraftOptions(drafter="none"))
    assert drafted(speculator, only) == []


def test_only_sequences_that_decode_are_asked() -> None:
    speculator, sequence = new_speculator(), running(LOOP, [1, 2])
    speculator.add(sequence)
    sequence.num_computed_tokens -= 1
    assert speculator.propose(1) == {}
    sequence.num_computed_tokens += 1
    sequence.status = SequenceStatus.WAITING
    assert speculator.propose(1) == {}


def test_unknown_drafters_and_tokens_are_refused() -> None:
    speculator = new_speculator()
    for fields, param in (
        ({"draft": DraftOptions(drafter="oracle")}, "speculative.drafter"),
        ({"draft": DraftOptions(max_tokens=-1)}, "speculative.max_tokens"),
        ({"prediction_token_ids": [1, 100]}, "prediction"),
    ):
        with pytest.raises(RequestError) as caught:
            speculator.check(running([1], **fields).request, vocab_size=100)
        assert caught.value.param == param
    speculator.check(running([1], draft=DraftOptions(drafter="none")).request, vocab_size=100)


@pytest.mark.parametrize(("drafter", "shown"), [("oracle", "'oracle'"), ("my question", "of this name")])
def test_an_unknown_drafter_is_named_unless_it_may_be_text(drafter: str, shown: str) -> None:
    request = running([1], draft=DraftOptions(drafter=drafter)).request
    with pytest.raises(RequestError, match=f"^drafter {shown} is not there; choose one of none, ngram"):
        new_speculator().check(request, vocab_size=100)


def test_tokens_are_counted_for_the_drafter_that_proposed_them() -> None:
    speculator, sequence = new_speculator(), running(LOOP, [1, 2])
    for num_accepted in (2, 4):
        speculator.observe(sequence, depth_of(drafted(speculator, sequence)), num_accepted)
    assert speculator.tokens_by_drafter == {"ngram": [8, 6]}
    sequence.status = SequenceStatus.FINISHED
    speculator.forget(sequence)
    speculator.observe(sequence, 4, 4)
    assert speculator.tokens_by_drafter == {"ngram": [8, 6]}


def test_an_end_leaves_nothing() -> None:
    speculator, sequence = new_speculator(), running(LOOP, [1, 2])
    drafted(speculator, sequence)
    speculator.forget(sequence)
    assert speculator.has_work, "a preempted sequence comes back"
    sequence.status = SequenceStatus.FINISHED
    speculator.forget(sequence)
    assert not speculator.has_work


class CountedNgram(NgramDrafter):
    """Notes for how many sequences it is asked at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        self.asked.append(len(sequences))
        return super().propose(sequences, ks)


def extend(sequence: Sequence, *tokens: int) -> None:
    sequence.tokens += tokens
    sequence.num_computed_tokens += len(tokens)


def test_sequences_without_guesses_are_polled_ever_less_often_and_together() -> None:
    drafter = CountedNgram()
    speculator = Speculator(SpeculativeConfig(drafter="ngram", max_tokens=4), [drafter])
    for _ in range(PLAIN_STEPS):
        speculator._lengths.observe_plain(2, STEP_S)
    sequence = running(list(range(20)), [50])
    speculator.add(sequence)
    speculator.propose(2)
    speculator.add(running(list(range(20)), [51]))
    for _ in range(200):
        speculator.propose(2)
    drafter.asked.clear()
    for _ in range(4 * LONGEST_POLL_STEPS):
        speculator.propose(2)
        speculator.measure(2, 0, STEP_S)
    assert drafter.asked == [2, 2, 2, 2]
    extend(sequence, *LOOP)
    drafts = [sequence in speculator.propose(2) for _ in range(2 * LONGEST_POLL_STEPS + 2)]
    assert drafts[-2:] == [True, True], "found after a pause at the latest, and asked every time from then on"


class Engine:
    """Steps of an engine whose sequences repeat LOOP; drafts take time and are right, or not."""

    def __init__(self, speculator: Speculator, *sequences: Sequence, is_right: bool = True) -> None:
        self.speculator, self.sequences, self.is_right = speculator, list(sequences), is_right
        self.plain_s, self.drafted_s, self.asking_s = STEP_S, 1.2 * STEP_S, 0.0
        for sequence in sequences:
            speculator.add(sequence)

    def step(self, num_forced: int = 0, num_prompt_tokens: int = 0) -> dict[Sequence, Draft]:
        """One step, in which a grammar forces `num_forced` draft tokens of others."""
        speculator, count = self.speculator, len(self.sequences)
        drafts = speculator.propose(count, has_prompts=num_prompt_tokens > 0)
        for sequence in self.sequences:
            depth = depth_of(drafts.get(sequence, []))
            right = depth if self.is_right else 0
            extend(sequence, *(_next(sequence, i, is_right=i < right) for i in range(right)))
            if depth:
                speculator.observe(sequence, depth, right)
            extend(sequence, LOOP[len(sequence.tokens) % 4])
        num_drafts = sum(map(depth_of, drafts.values())) + num_forced
        time_s = self.drafted_s if num_drafts else self.plain_s
        time_s += self.asking_s * speculator._has_asked
        speculator.measure(count, num_drafts, time_s, num_prompt_tokens=num_prompt_tokens)
        return drafts

    def num_drafted(self, steps: int, num_forced: int = 0) -> int:
        """The number of the next steps that have drafts."""
        return sum(bool(self.step(num_forced)) for _ in range(steps))


def _next(sequence: Sequence, offset: int, *, is_right: bool) -> int:
    return LOOP[len(sequence.tokens) % 4] if is_right else 99


def test_drafts_begin_when_plain_steps_are_known_and_go_on_while_they_pay() -> None:
    engine = Engine(new_speculator(adaptive=True), running(LOOP, [1, 2]))
    assert [bool(engine.step()) for _ in range(PLAIN_STEPS + 2)] == [False] * PLAIN_STEPS + [True, True]
    assert engine.num_drafted(300) > 280
    engine.drafted_s = 20 * STEP_S
    engine.num_drafted(100)
    assert engine.num_drafted(300) < 10
    engine.drafted_s = 1.2 * STEP_S
    engine.num_drafted(2 * PAUSE_STEPS << MAX_DOUBLINGS)
    assert engine.num_drafted(300) > 200, "they are tried again"


def test_time_spent_on_asking_in_vain_is_no_part_of_a_plain_step() -> None:
    engine = Engine(new_speculator(adaptive=True), running(list(range(20)), [50]))
    engine.asking_s = STEP_S
    for _ in range(100):
        extend(engine.sequences[0], 1000 + len(engine.sequences[0].tokens))
        engine.step()
    assert engine.speculator._lengths._of(1).plain_s == STEP_S


def test_guesses_that_are_not_verified_are_judged_by_the_output() -> None:
    speculator = new_speculator(adaptive=True)
    sequence = running(LOOP, [1, 2])
    engine = Engine(speculator, sequence, is_right=False)
    engine.drafted_s = 30 * STEP_S
    engine.num_drafted(100)
    average = speculator._averages["ngram"]
    before = average.accepted.means(1)[0]
    assert engine.num_drafted(600) < 10
    assert average.accepted.means(1)[0] > before + 0.1, "the loop went on as the drafter said"


class Guesses:
    """Proposes the same every time."""

    name = "guesses"

    def __init__(self, guess: Draft, *, is_cheap: bool = False) -> None:
        self.is_cheap = is_cheap
        self.guess = guess
        self.num_asked = 0

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        self.num_asked += 1
        return [self.guess for _ in sequences]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        pass

    def forget(self, sequence: Sequence) -> None:
        pass

    def drop_cached(self) -> None:
        return


def guessing(guess: Draft, *, is_cheap: bool = False, adaptive: bool = False) -> Speculator:
    config = SpeculativeConfig(drafter="guesses", max_tokens=4, adaptive=adaptive)
    return Speculator(config, [PredictionDrafter(), Guesses(guess, is_cheap=is_cheap)])


def test_wrong_guesses_are_not_verified_and_a_new_request_is_asked_at_once() -> None:
    speculator, sequence = guessing([99, 98], is_cheap=True, adaptive=True), running(LOOP, [1, 2])
    engine = Engine(speculator, sequence, is_right=False)
    engine.num_drafted(100)
    drafter = speculator._drafters["guesses"]
    assert isinstance(drafter, Guesses)
    drafter.num_asked = 0
    assert engine.num_drafted(8 * LONGEST_POLL_STEPS) <= 1 and drafter.num_asked <= 9
    other = running(LOOP, [1, 2])
    speculator.add(other)
    asked = drafter.num_asked
    engine.num_drafted(2)  # one of them may have to be plain
    assert drafter.num_asked > asked


def test_a_tree_is_handed_on_and_one_without_branches_is_a_chain() -> None:
    tree = DraftTree((5, 6, 7), (-1, -1, 0))
    assert drafted(guessing(tree), running([1], [2])) == tree
    assert drafted(guessing(DraftTree((5, 6, 7), (-1, 0, 1))), running([1], [2])) == [5, 6, 7]
    assert drafted(guessing(DraftTree((), ())), running([1], [2])) == []


def test_any_first_token_of_an_unverified_tree_would_have_been_right() -> None:
    speculator = guessing(DraftTree((5, 6, 7), (-1, -1, 0)), is_cheap=True, adaptive=True)
    for _ in range(PLAIN_STEPS):
        speculator._lengths.observe_plain(1, STEP_S)
    speculator._lengths.choose = lambda candidates, *_: [0] * len(candidates)  # type: ignore[method-assign]
    sequence = running([1], [2])
    speculator.add(sequence)
    assert speculator.propose(1) == {}
    for token, is_right in ((6, True), (7, False), (5, True)):
        before = speculator._averages["guesses"].accepted.means(1)[0]
        extend(sequence, token)
        speculator._active[sequence].backoff.succeed()
        speculator.propose(1)
        assert (speculator._averages["guesses"].accepted.means(1)[0] > before) == is_right


def test_a_drafter_that_gives_less_is_judged_on_what_it_was_asked_for() -> None:
    speculator = guessing(DraftTree((5, 6, 7), (-1, -1, 0)))
    sequence = running([1], [2])
    speculator.add(sequence)
    average = speculator._averages["guesses"]
    for _ in range(200):
        speculator.propose(1)
        speculator.observe(sequence, 2, 2)
    first, second, third, _ = average.accepted.means(4)
    assert first > 0.9 and second > 0.9 and third < 0.1, "asked for four, of which two came"
    assert average.sizes.means(4) == pytest.approx([2.0, 1.0, 0.0, 0.0], abs=0.2)


class Constraint:
    """A grammar that leaves every choice but to one sequence."""

    def __init__(self, strict: Sequence | None = None) -> None:
        self.strict = strict

    def forced(self, sequence: Sequence) -> list[int]:
        return [7] if sequence is self.strict else []

    def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
        return len(draft)

    def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
        return tree.keep([node for node, token in enumerate(tree.tokens) if token != 6])


def test_what_a_grammar_forbids_is_pruned_from_a_tree() -> None:
    speculator = guessing(DraftTree((5, 6, 7), (-1, -1, 0)))
    speculator.constraint = Constraint()
    assert drafted(speculator, running([1], [2])) == [5, 7]


def strict_sequence() -> Sequence:
    return running(LOOP, [1, 2], grammar=GrammarSpec(kind="regex", text="7*"))


@pytest.mark.parametrize("is_forcing", [True, False])
def test_a_grammar_stops_no_drafter(*, is_forcing: bool) -> None:
    """Whether it forces tokens in every step, so that none is plain, or none."""
    strict = strict_sequence()
    speculator = new_speculator(adaptive=True)
    speculator.constraint = Constraint(strict if is_forcing else None)
    for _ in range(PLAIN_STEPS):
        speculator._lengths.observe_plain(2, STEP_S)
    sequence = running(LOOP, [1, 2])
    engine = Engine(speculator, sequence, strict)
    found = [engine.step() for _ in range(400)]
    assert sum(sequence in drafts for drafts in found) > 350
    assert all((strict in drafts) for drafts in found) or not is_forcing


def test_what_a_grammar_forces_comes_while_drafters_are_paused_and_is_not_judged() -> None:
    engine = Engine(new_speculator(adaptive=True), running(LOOP, [1, 2]))
    engine.num_drafted(100)
    times = engine.speculator._lengths._of(1)
    times.account.fail(engine.speculator._step)
    times.account._first_step = -1
    before = times.account._saved_s, times._weight, times.plain_s
    strict = strict_sequence()
    engine.speculator.constraint = Constraint(strict)
    engine.speculator.add(strict)
    for _ in range(20):
        assert engine.speculator.propose(1) == {strict: [7]}
        engine.speculator.measure(1, 1, 5 * STEP_S)
    assert (times.account._saved_s, times._weight, times.plain_s) == before


@pytest.mark.parametrize("is_cheap", [True, False])
def test_beside_prompts_only_cheap_drafters_are_asked(*, is_cheap: bool) -> None:
    speculator = guessing([5, 6], is_cheap=is_cheap, adaptive=True)
    for _ in range(PLAIN_STEPS):
        speculator._lengths.observe_plain(1, STEP_S)
    sequence = running([1], [2])
    speculator.add(sequence)
    for _ in range(8):
        assert bool(speculator.propose(1, has_prompts=True)) == is_cheap
    assert speculator.propose(1)[sequence] == [5, 6], "it was not paused meanwhile"


def test_fixed_lengths_are_drafted_beside_prompts_too() -> None:
    speculator, sequence = guessing([5]), running([1], [2])
    speculator.add(sequence)
    assert speculator.propose(1, has_prompts=True) == {sequence: [5]}


def test_beside_prompts_a_prediction_still_drafts_before_a_drafter_that_waits() -> None:
    speculator = guessing([5, 6], adaptive=True)
    for _ in range(PLAIN_STEPS):
        for count in (1, 2):
            speculator._lengths.observe_plain(count, STEP_S)
    sequence = running(LOOP, [1, 2], prediction_token_ids=[1, 2, 9, 9])
    speculator.add(sequence)
    assert speculator.propose(1, has_prompts=True) == {sequence: [9, 9]}
    left = running(LOOP, [1, 2], prediction_token_ids=[7, 7, 9, 9])
    speculator.add(left)
    assert left not in speculator.propose(2, has_prompts=True)
    assert speculator.propose(2)[left] == [5, 6]


def test_steps_with_prompts_say_nothing_of_drafts() -> None:
    speculator, sequence = new_speculator(adaptive=True), running(LOOP, [1, 2])
    engine = Engine(speculator, sequence)
    for _ in range(50):
        engine.step(num_prompt_tokens=100)
    assert speculator._lengths._of(1).plain_s == 0.0
    engine.num_drafted(50)
    before = speculator._lengths._of(1)._weight
    engine.step(num_prompt_tokens=100)
    assert speculator._lengths._of(1)._weight == before


def test_a_drafter_that_works_in_vain_backs_off() -> None:
    """The drafter has no guess, though it was asked for one: the time is lost all the same."""
    speculator = guessing([], adaptive=True)
    engine = Engine(speculator, running(LOOP, [1, 2]))
    engine.asking_s = STEP_S
    engine.num_drafted(2 * PAUSE_STEPS + PLAIN_STEPS)
    drafter = speculator._drafters["guesses"]
    assert isinstance(drafter, Guesses)
    asked = drafter.num_asked
    engine.num_drafted(PAUSE_STEPS << MAX_DOUBLINGS)
    assert drafter.num_asked - asked < (PAUSE_STEPS << MAX_DOUBLINGS) / 2


class Clock:
    """Goes on when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Reader(Guesses):
    """Always right about the one token that it proposes; captures hidden states in every step."""

    name = "reader"

    def __init__(self, capture_s: float) -> None:
        super().__init__([LOOP[0]])
        self.clock = Clock()
        self.capture = Capture(self.clock)
        self._capture_s = capture_s

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        self.num_asked += 1
        return [[LOOP[len(sequence.tokens) % 4]] for sequence in sequences]

    def see(self) -> None:
        if self.capture.is_on and self.capture.sequences:
            with self.capture.timed():
                self.clock.now_s += self._capture_s


class Reading:
    """An engine with a Reader."""

    def __init__(
        self, capture_s: float, drafted_s: float, num_sequences: int = 1, *, adaptive: bool = True
    ) -> None:
        self.reader = Reader(capture_s)
        config = SpeculativeConfig(drafter="reader", max_tokens=1, adaptive=adaptive)
        self.speculator = Speculator(config, [self.reader, PredictionDrafter()])
        self.sequences = [running(LOOP, [1, 2]) for _ in range(num_sequences)]
        for sequence in self.sequences:
            self.speculator.add(sequence)
        self._drafted_s = drafted_s

    def captured(self, steps: int, num_joining: int = 0) -> int:
        """The number of the next steps in which hidden states are captured."""
        count, num_captured = len(self.sequences), 0
        for _ in range(steps):
            drafts = self.speculator.propose(count, num_joining=num_joining)
            self.reader.see()
            time_s = (self._drafted_s if drafts else STEP_S) + self.reader.capture.step_s
            num_captured += self.reader.capture.step_s > 0
            for sequence, draft in drafts.items():
                self.speculator.observe(sequence, len(draft), len(draft))
                extend(sequence, *draft)
            for sequence in self.sequences:
                extend(sequence, LOOP[len(sequence.tokens) % 4])
            self.speculator.measure(count, len(drafts), time_s)
        return num_captured

    def end(self) -> None:
        for sequence in self.sequences:
            sequence.status = SequenceStatus.FINISHED
            self.speculator.forget(sequence)
        self.sequences.clear()

    def begin(self, num_sequences: int) -> None:
        self.end()
        self.sequences += [running(LOOP, [1, 2]) for _ in range(num_sequences)]
        for sequence in self.sequences:
            self.speculator.add(sequence)


def test_capture_goes_on_while_drafts_save_more_than_it_takes() -> None:
    assert isinstance(Reader(0.0), CapturingDrafter) and not isinstance(Guesses([]), CapturingDrafter)
    assert Reading(0.1 * STEP_S, 1.4 * STEP_S).captured(1000) == 1000
    # Two tokens in 1.8 steps save 0.2 steps; capture takes 0.5.
    losing = Reading(0.5 * STEP_S, 1.8 * STEP_S)
    assert losing.captured(1000) < 2 * PAUSE_STEPS
    assert not losing.reader.capture.is_on and losing.reader.num_asked < 2 * PAUSE_STEPS


def test_capture_is_tried_again_for_new_sequences_and_resumes_when_it_pays() -> None:
    reading = Reading(0.5 * STEP_S, 1.8 * STEP_S)
    reading.captured(4 * PAUSE_STEPS)
    assert not reading.reader.capture.is_on
    reading._drafted_s = 1.1 * STEP_S
    steps = 0
    while not reading.reader.capture.is_on:
        reading.captured(1)
        steps += 1
    assert PAUSE_STEPS << MAX_DOUBLINGS <= steps + 4 * PAUSE_STEPS, "a trial is expensive"
    reading.begin(1)
    assert reading.captured(1000) == 1000


def test_sequences_that_begin_while_capture_is_paused_are_left_out() -> None:
    reading = Reading(0.5 * STEP_S, 1.8 * STEP_S)
    reading.captured(4 * PAUSE_STEPS)
    reading.begin(1)
    reading.captured(1)
    assert not reading.reader.capture.sequences
    while not reading.reader.capture.is_on:
        reading.captured(1)
    asked = reading.reader.num_asked
    assert reading.captured(100) == 0 and reading.reader.num_asked == asked


def test_each_batch_size_has_capture_of_its_own_and_prompts_count_in_the_batch_they_join() -> None:
    reading = Reading(0.5 * STEP_S, 1.8 * STEP_S)
    reading.captured(4 * PAUSE_STEPS)
    assert not reading.reader.capture.is_on
    reading.captured(1, num_joining=3)
    assert reading.reader.capture.is_on, "four sequences"
    reading.captured(1)
    assert not reading.reader.capture.is_on


def test_only_sequences_that_may_ask_are_captured() -> None:
    reading = Reading(0.0, 1.2 * STEP_S)
    other = running([1], [2], draft=DraftOptions(drafter="none"))
    reading.speculator.add(other)
    reading.captured(1)
    (sequence,) = reading.sequences
    assert reading.reader.capture.sequences == {sequence}
    sequence.status = SequenceStatus.WAITING
    reading.speculator.forget(sequence)
    assert reading.reader.capture.sequences == {sequence}, "a preempted one comes back"
    reading.end()
    assert not reading.reader.capture.sequences


def test_what_other_drafters_save_does_not_pay_for_capture() -> None:
    reading = Reading(0.5 * STEP_S, 1.0 * STEP_S)
    for sequence in reading.sequences:
        reading.speculator._active[sequence].sources.clear()
    (sequence,) = reading.sequences
    strict = strict_sequence()
    reading.speculator.constraint = Constraint(strict)
    reading.speculator.add(strict)
    assert reading.captured(1000) < 2 * PAUSE_STEPS


def test_with_fixed_lengths_capture_never_stops() -> None:
    assert Reading(0.5 * STEP_S, 5 * STEP_S, adaptive=False).captured(400) == 400


def test_the_engines_limits_reach_the_length_model() -> None:
    """A sequence near its limit gets a short draft without shortening those of others."""
    seen: list[list[int]] = []
    speculator = new_speculator(adaptive=True)

    def choose(_: list[SequenceAcceptance], limits: list[int], *__: int) -> list[int]:
        seen.append(limits)
        return limits

    for _ in range(PLAIN_STEPS):
        speculator._lengths.observe_plain(2, STEP_S)
    speculator._lengths.choose = choose  # type: ignore[assignment, method-assign]
    long, short = running(LOOP, [1, 2]), running(LOOP, [1, 2], draft=DraftOptions(max_tokens=1))
    for sequence in (long, short):
        speculator.add(sequence)
    assert speculator.propose(2) == {long: [3, 4, 1, 2], short: [3]}
    assert seen == [[4, 1]]
