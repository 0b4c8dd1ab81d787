from __future__ import annotations

import pytest

from backend.config import SpeculativeConfig
from backend.errors import RequestError
from backend.speculative.acceptance import Acceptance
from backend.speculative.adaptive import LengthPolicy
from backend.speculative.balance import Balance
from backend.speculative.ngram import NgramDrafter
from backend.speculative.prediction import PredictionDrafter
from backend.speculative.speculator import (
    FIRST_PAUSE_STEPS,
    LONGEST_PAUSE_STEPS,
    LONGEST_SLEEP_STEPS,
    MEASURE_ASLEEP_EVERY_STEPS,
    MISS_AT_LEAST_EVERY_STEPS,
    MISS_EVERY_STEPS,
    PATIENCE_STEPS,
    Speculator,
)
from backend.speculative.step_costs import StepCosts
from backend.speculative.tree import depth_of
from backend.types import Draft, DraftOptions, DraftTree, GrammarSpec, Sequence, SequenceStatus
from tests.backend.speculative.sequences import running

LOOP = [1, 2, 3, 4] * 5


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


def test_drafters_rest_while_nothing_is_worth_it_and_wake_for_a_new_request() -> None:
    speculator, sequence = new_speculator(adaptive=True), running(LOOP, [1, 2])
    speculator.add(sequence)
    for _ in range(4):
        assert speculator.propose(1) == {}, "what a plain step takes is not known"
        speculator.measure(1, 0, 0.01)
    assert [bool(speculator.propose(1)) for _ in range(3)] == [True, True, True]
    speculator._wake_step = 1000
    assert not speculator.propose(1)
    sequence.status = SequenceStatus.WAITING
    speculator.add(running(LOOP, [1, 2]))
    assert speculator.propose(1)


class CountedNgram(NgramDrafter):
    """Notes for how many sequences it is asked at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        self.asked.append(len(sequences))
        return super().propose(sequences, ks)


class NothingIsWorthIt(LengthPolicy):
    """Refuses all guesses."""

    def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
        return [0] * len(limits)

    def plain_steps(self, num_sequences: int) -> int:
        return 0


def counted(policy: LengthPolicy | None = None) -> tuple[Speculator, list[int]]:
    config = SpeculativeConfig(drafter="ngram", max_tokens=4, adaptive=policy is not None)
    drafter = CountedNgram()
    return Speculator(config, [drafter], policy), drafter.asked


def test_a_sequence_without_guesses_is_asked_seldom_until_it_has_one() -> None:
    speculator, asked = counted()
    sequence = running(list(range(20)), [50])
    speculator.add(sequence)
    for _ in range(PATIENCE_STEPS + 1):
        speculator.propose(1)
    assert len(asked) == PATIENCE_STEPS + 1
    asked.clear()
    for _ in range(4 * MISS_EVERY_STEPS):
        speculator.propose(1)
    assert len(asked) == 4
    sequence.tokens += LOOP
    sequence.num_computed_tokens += len(LOOP)
    drafts = [bool(speculator.propose(1)) for _ in range(MISS_EVERY_STEPS + 1)]
    assert drafts[-2:] == [True, True], "found after a pause at the latest, and asked every time from then on"


def test_the_longer_nobody_has_a_guess_the_more_seldom_all_are_asked_together() -> None:
    speculator, asked = counted()
    speculator.add(running(list(range(20)), [50]))
    speculator.propose(2)
    speculator.add(running(list(range(20)), [51]))
    for _ in range(200):
        speculator.propose(2)
    asked.clear()
    for _ in range(4 * MISS_AT_LEAST_EVERY_STEPS):
        speculator.propose(2)
    assert asked == [2, 2, 2, 2]


def test_pauses_grow_while_no_guess_is_worth_verifying() -> None:
    speculator, asked = counted(NothingIsWorthIt())
    sequence = running(LOOP, [1, 2])
    speculator.add(sequence)
    steps: list[int] = []
    for step in range(40):
        sequence.tokens.append(LOOP[(step + 2) % 4])  # guesses are right: nobody is given up
        sequence.num_computed_tokens += 1
        before = len(asked)
        speculator.propose(1)
        steps += [step] * (len(asked) - before)
    assert steps[1] - steps[0] == FIRST_PAUSE_STEPS + 1
    assert steps[-1] - steps[-2] == LONGEST_PAUSE_STEPS + 1


class Machine:
    """A speculator whose drafts are all wrong and cost three steps, for sequences of a loop of tokens."""

    def __init__(self, num_sequences: int = 1) -> None:
        self.measured: list[int] = []
        measured = self.measured

        class Measures(StepCosts):
            def observe(self, num_sequences: int, num_drafts: int, time_s: float) -> None:
                measured.append(num_drafts)
                super().observe(num_sequences, num_drafts, time_s)

        policy = LengthPolicy()
        policy.costs = Measures()
        self.speculator, self.asked = counted(policy)
        self.sequences = [running(LOOP, [1, 2]) for _ in range(num_sequences)]
        for sequence in self.sequences:
            self.speculator.add(sequence)

    def step(self, num_forced: int = 0) -> int:
        """One step of the engine, with so many drafts besides; the number of drafts of the drafter."""
        drafts = self.speculator.propose(len(self.sequences))
        for sequence in self.sequences:
            if sequence in drafts:
                self.speculator.observe(sequence, len(drafts[sequence]), 0)
            sequence.tokens.append(LOOP[len(sequence.tokens) % 4])
            sequence.num_computed_tokens += 1
        num_drafts = sum(map(len, drafts.values()))
        time_s = 0.03 if num_drafts else 0.01
        self.speculator.measure(len(self.sequences), num_drafts + num_forced, time_s)
        return num_drafts

    def steps_until_drafts(self) -> int:
        return next(count for count in range(200) if self.step())

    def rest(self) -> int:
        """Let drafts rest for this many sequences; for so many steps."""
        balance = Balance()
        balance.observe_plain(0.01)
        for _ in range(8):
            balance.observe(1.0, 0.03)
        size = {1: 0, 8: 6}[len(self.sequences)]
        self.speculator.policy._balances[size] = balance
        self.asked.clear()
        self.measured.clear()
        return balance.rest_steps


def test_while_drafts_rest_hardly_anybody_is_asked_and_few_steps_are_measured() -> None:
    machine = Machine()
    assert machine.steps_until_drafts() == 4 == len(machine.measured), (
        "first, what others take, but the first"
    )
    rest = machine.rest()
    assert rest <= machine.steps_until_drafts() <= rest + MEASURE_ASLEEP_EVERY_STEPS
    assert rest / LONGEST_SLEEP_STEPS <= len(machine.asked) <= rest / LONGEST_SLEEP_STEPS + 2
    assert len(machine.measured) <= rest / MEASURE_ASLEEP_EVERY_STEPS + 5


@pytest.mark.parametrize("every", [2, 3, 4, 5, 7])
def test_a_rest_ends_however_many_steps_hold_drafts_that_a_grammar_forced(every: int) -> None:
    machine = Machine()
    machine.steps_until_drafts()
    rest = machine.rest()
    num_plain = 0
    for step in range(1, 1000):
        is_forced = step % every == 0
        machine.measured.clear()
        if machine.step(num_forced=int(is_forced)):
            break
        assert machine.measured == [1] or not is_forced, "what has drafts is always measured"
        num_plain += not is_forced
    assert rest <= num_plain <= rest + LONGEST_SLEEP_STEPS


def test_asking_in_vain_is_no_part_of_what_a_plain_step_takes() -> None:
    """It takes a tenth of a short one: drafts would seem to save what only looking for them costs."""
    speculator, _ = counted(NothingIsWorthIt())
    sequence = running(LOOP, [1, 2])
    speculator.add(sequence)
    for _ in range(60):
        asked = not speculator.is_asleep
        speculator.propose(1)
        sequence.tokens.append(LOOP[len(sequence.tokens) % 4])
        sequence.num_computed_tokens += 1
        speculator.measure(1, 0, 0.011 if asked else 0.010)
    balance = speculator.policy._balances[0]
    assert balance._plain_s == 0.010


def test_forced_drafts_are_not_judged() -> None:
    machine = Machine()
    machine.steps_until_drafts()
    balance = machine.speculator.policy._balances[0]
    before = balance._num_steps, balance._lost
    machine.speculator._wake_step = 10**6
    for _ in range(20):
        assert not machine.step(num_forced=3)
    assert (balance._num_steps, balance._lost) == before
    assert machine.measured[-1] == 3, "but what they take is measured"


class ForcesNothing:
    """A grammar that leaves every choice."""

    def forced(self, sequence: Sequence) -> list[int]:
        return []

    def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
        return len(draft)

    def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
        return tree


def test_a_grammar_that_forces_nothing_stops_nobody() -> None:
    speculator, sequence = new_speculator(adaptive=True), running(LOOP, [1, 2])
    speculator.constraint = ForcesNothing()
    strict = running(LOOP, [1, 2], grammar=GrammarSpec(kind="regex", text=".*"))
    for each in (sequence, strict):
        speculator.add(each)
    with_drafts = []
    for step in range(300):
        drafts = speculator.propose(2)
        for each in (sequence, strict):
            if draft := drafts.get(each):
                speculator.observe(each, len(draft), len(draft))
            each.tokens.append(LOOP[len(each.tokens) % 4])
            each.num_computed_tokens += 1
        num_drafts = sum(map(depth_of, drafts.values()))
        speculator.measure(2, num_drafts, 0.011 if num_drafts else 0.010)
        with_drafts += [step] * bool(drafts)
    assert with_drafts[0] < 6 and len(with_drafts) > 280, (
        "neither at first nor when a plain step is wanted again"
    )


def test_a_grammar_that_forces_something_in_every_step_stops_nobody() -> None:
    class ForcesAlways(ForcesNothing):
        def forced(self, sequence: Sequence) -> list[int]:
            return [7] if sequence is strict else []

    speculator, sequence = new_speculator(adaptive=True), running(LOOP, [1, 2])
    strict = running(LOOP, [1, 2], grammar=GrammarSpec(kind="regex", text="7*"))
    for _ in range(3):
        speculator.policy.costs.observe(2, 0, 0.010)
    speculator.constraint = ForcesAlways()
    for each in (sequence, strict):
        speculator.add(each)
    with_drafts = 0
    for _ in range(400):
        drafts = speculator.propose(2)
        assert drafts[strict] == [7]
        if draft := drafts.get(sequence):
            with_drafts += 1
            speculator.observe(sequence, len(draft), len(draft))
        sequence.tokens.append(LOOP[len(sequence.tokens) % 4])
        sequence.num_computed_tokens += 1
        speculator.measure(2, sum(map(depth_of, drafts.values())), 0.011)
    assert with_drafts > 300


def test_while_one_drafter_rests_a_grammar_does_not_stop_another() -> None:
    speculator, sequence = new_speculator(adaptive=True), running(LOOP, [1, 2])
    speculator.constraint = ForcesNothing()
    speculator._rests.add("sage", ValueError())
    speculator.add(sequence)
    alone = running(
        LOOP, [1, 2], grammar=GrammarSpec(kind="regex", text=".*"), draft=DraftOptions(drafter="none")
    )
    speculator.add(alone)
    for _ in range(5):
        drafts = speculator.propose(2)
        speculator.measure(2, sum(map(depth_of, drafts.values())), 0.010)
    assert drafts[sequence]


def test_steps_in_which_a_drafter_worked_in_vain_are_not_plain() -> None:
    class All(LengthPolicy):
        def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
            return limits

    policy = All()
    speculator = Speculator(SpeculativeConfig(drafter="sage", max_tokens=4), [Sage()], policy)
    speculator.add(running(LOOP, [1, 2]))
    assert not speculator.propose(1)
    speculator.measure(1, 0, 0.020)
    assert not policy._balances
    speculator._wake_step = 10
    assert not speculator.propose(1)
    speculator.measure(1, 0, 0.010)
    assert policy._balances[0]._plain_s == 0.010


class Sage:
    """Costs something, and has no guess."""

    name = "sage"
    is_cheap = False

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        return [[] for _ in sequences]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        pass

    def forget(self, sequence: Sequence) -> None:
        pass


def test_the_policy_is_told_when_others_are_asked_for_another_step() -> None:
    begun = []

    class Notes(LengthPolicy):
        def begin_step(self) -> None:
            begun.append(1)

    speculator, _ = counted(Notes())
    speculator.add(running(LOOP, [1, 2]))
    speculator.propose(1)
    assert speculator.is_asleep and begun == [1]
    speculator.propose(1)
    speculator._wake_step = 0
    speculator.propose(1)
    assert begun == [1, 1]


def test_bad_experience_is_forgotten_for_sequences_to_come_as_well() -> None:
    speculator = Speculator(SpeculativeConfig(drafter="sage", max_tokens=4), [Sage()])
    prior = speculator._prior("sage")
    prior.observe(4, 0)
    before = prior.rate
    speculator.add(running(LOOP, [1, 2]))
    speculator.propose(1)  # what a plain step takes is not known
    assert prior.rate > before


def test_when_sequences_end_the_others_are_asked_at_once() -> None:
    machine = Machine(num_sequences=8)
    machine.steps_until_drafts()
    machine.rest()
    assert not machine.step()
    assert not machine.step() and len(machine.asked) == 1, "asleep"
    for sequence in machine.sequences[1:]:
        sequence.status = SequenceStatus.FINISHED
        machine.speculator.forget(sequence)
    del machine.sequences[1:]
    machine.step()
    assert len(machine.asked) == 2


def test_who_has_a_grammar_gets_what_must_come_while_others_sleep() -> None:
    class Forces:
        def forced(self, sequence: Sequence) -> list[int]:
            return [7]

        def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
            return len(draft)

        def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
            return tree

    machine = Machine()
    machine.rest()
    machine.step()
    assert machine.speculator.is_asleep
    machine.speculator.constraint = Forces()
    strict = running(LOOP, [1, 2], grammar=GrammarSpec(kind="regex", text="7*"))
    machine.speculator.add(strict)
    machine.speculator._wake_step = 1000
    assert machine.speculator.propose(2) == {strict: [7]}


def test_sleep_counts_for_drafters_that_failed_or_do_not_read() -> None:
    machine = Machine()
    machine.rest()
    machine.step()
    before = machine.speculator._rests._step
    begun: list[int] = []

    class Follows:
        class following:  # noqa: N801 - as the protocol calls it
            step_s = 0.0
            is_resting = False

            @staticmethod
            def begin_step(num_running: int) -> None:
                begun.append(num_running)

    machine.speculator._followers = [Follows]  # type: ignore[list-item]
    assert machine.speculator.is_asleep
    machine.speculator.propose(1)
    assert machine.speculator._rests._step == before + 1 and begun == [1]


def test_guesses_that_nobody_verifies_are_still_judged() -> None:
    speculator, sequence = new_speculator(adaptive=True), running(LOOP, [1, 2])
    speculator.add(sequence)
    (speculation,) = speculator._active.values()
    before = speculation.acceptances[0].rate
    speculator.propose(1)
    sequence.tokens.append(99)
    sequence.num_computed_tokens += 1
    speculator._wake_step = 0
    speculator.propose(1)
    assert speculation.acceptances[0].rate < before


def test_an_end_leaves_nothing() -> None:
    speculator, sequence = new_speculator(), running(LOOP, [1, 2])
    drafted(speculator, sequence)
    speculator.forget(sequence)
    assert speculator.has_work, "a preempted sequence comes back"
    sequence.status = SequenceStatus.FINISHED
    speculator.forget(sequence)
    assert not speculator.has_work


class Branching:
    """Says the same tree every time."""

    name = "branching"

    def __init__(self, tree: DraftTree, *, is_cheap: bool) -> None:
        self.is_cheap = is_cheap
        self._tree = tree

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        return [self._tree for _ in sequences]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        pass

    def forget(self, sequence: Sequence) -> None:
        pass


def branching(tree: DraftTree, *, is_cheap: bool, max_tokens: int = 4, adaptive: bool = False) -> Speculator:
    config = SpeculativeConfig(drafter="branching", max_tokens=max_tokens, adaptive=adaptive)
    return Speculator(config, [Branching(tree, is_cheap=is_cheap)])


def test_a_tree_is_handed_on_and_one_without_branches_is_a_chain() -> None:
    tree = DraftTree((5, 6, 7), (-1, -1, 0))
    assert drafted(branching(tree, is_cheap=False), running([1], [2])) == tree
    chain = DraftTree((5, 6, 7), (-1, 0, 1))
    assert drafted(branching(chain, is_cheap=False), running([1], [2])) == [5, 6, 7]
    assert drafted(branching(DraftTree((), ()), is_cheap=False), running([1], [2])) == []


def test_a_drafter_that_gives_less_is_judged_on_what_it_was_asked_for() -> None:
    speculator = branching(DraftTree((5, 6, 7), (-1, -1, 0)), is_cheap=False)
    sequence = running([1], [2])
    speculator.add(sequence)
    speculator.propose(1)
    prior = speculator._prior("branching")
    before = prior.tried
    speculator.observe(sequence, 2, 2)
    assert prior.tried == pytest.approx(prior.memory * before + 3), "both right, the third of four not there"
    first, second, third, fourth = prior.places.sizes(4)
    assert first > second, "two nodes and one node"
    assert second > third > fourth, "asked for and not given"


def test_what_may_not_come_is_pruned_from_a_tree() -> None:
    class NoSix(ForcesNothing):
        def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
            return tree.keep([node for node, token in enumerate(tree.tokens) if token != 6])

    speculator = branching(DraftTree((5, 6, 7), (-1, -1, 0)), is_cheap=False)
    speculator.constraint = NoSix()
    assert drafted(speculator, running([1], [2])) == [5, 7]


def test_any_first_token_of_an_unverified_tree_would_have_been_right() -> None:
    speculator = branching(DraftTree((5, 6, 7), (-1, -1, 0)), is_cheap=True, adaptive=True)
    sequence = running([1], [2])
    speculator.add(sequence)
    assert speculator.propose(1) == {}, "what a plain step takes is not known"
    before = speculator._prior("branching").accepted
    sequence.tokens.append(6)
    sequence.num_computed_tokens += 1
    for _ in range(FIRST_PAUSE_STEPS + 1):
        speculator.propose(1)
    after = speculator._prior("branching")
    assert after.accepted == pytest.approx(after.memory * before + 1)


class Asks(LengthPolicy):
    """Wants all that it may have."""

    def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
        return limits


@pytest.mark.parametrize("is_cheap", [True, False])
def test_beside_prompts_only_cheap_drafters_are_asked(is_cheap: bool) -> None:
    config = SpeculativeConfig(drafter="branching", max_tokens=4)
    chain = DraftTree((5, 6), (-1, 0))
    speculator = Speculator(config, [Branching(chain, is_cheap=is_cheap)], Asks())
    sequence = running([1], [2])
    speculator.add(sequence)
    for _ in range(PATIENCE_STEPS + 2):
        assert bool(speculator.propose(1, has_prompts=True)) == is_cheap
    assert speculator.propose(1)[sequence] == [5, 6], "nobody was put to sleep meanwhile"


def test_fixed_lengths_are_drafted_beside_prompts_too() -> None:
    speculator = branching(DraftTree((5,), (-1,)), is_cheap=False)
    sequence = running([1], [2])
    speculator.add(sequence)
    assert speculator.propose(1, has_prompts=True) == {sequence: [5]}


def test_beside_prompts_a_prediction_still_drafts_before_a_drafter_that_waits() -> None:
    config = SpeculativeConfig(drafter="branching", max_tokens=4)
    drafters = [PredictionDrafter(), Branching(DraftTree((5, 6), (-1, 0)), is_cheap=False)]
    speculator = Speculator(config, drafters, Asks())
    sequence = running(LOOP, [1, 2], prediction_token_ids=[1, 2, 9, 9])
    speculator.add(sequence)
    assert speculator.propose(1, has_prompts=True) == {sequence: [9, 9]}
    left = running(LOOP, [1, 2], prediction_token_ids=[7, 7, 9, 9])
    speculator.add(left)
    assert left not in speculator.propose(2, has_prompts=True)
    assert speculator.propose(2)[left] == [5, 6]


@pytest.mark.parametrize("is_cheap", [True, False])
def test_only_of_drafters_that_were_not_asked_a_hard_stretch_is_forgotten(is_cheap: bool) -> None:
    config = SpeculativeConfig(drafter="branching", max_tokens=4)
    drafter = Branching(DraftTree((5, 6), (-1, 0)), is_cheap=is_cheap)
    speculator = Speculator(config, [drafter], NothingIsWorthIt())
    sequence = running([1], [2])
    speculator.add(sequence)
    acceptance = speculator._active[sequence].acceptances[0]
    acceptance.accepted = 0.0
    for _ in range(3):
        speculator.propose(1)
        sequence.tokens += [7] * 30  # none of them was guessed
        sequence.num_computed_tokens += 30
        speculator._wake_step = 0
    assert (acceptance.rate > 0.3) != is_cheap


def test_what_is_accepted_beside_prompts_is_no_gain_of_the_next_step() -> None:
    judged: list[int] = []

    class Judges(Asks):
        def judge(self, num_sequences: int, num_drafts: int, num_accepted: int, time_s: float) -> float:
            judged.append(num_accepted)
            return 0.0

    config = SpeculativeConfig(drafter="branching", max_tokens=4)
    drafter = Branching(DraftTree((5, 6), (-1, 0)), is_cheap=True)
    speculator = Speculator(config, [drafter], Judges())
    sequence = running([1], [2])
    speculator.add(sequence)
    assert speculator.propose(1, has_prompts=True)
    speculator.observe(sequence, 2, 2)  # the step computes a prompt as well: nobody measures it
    assert speculator.propose(1)
    speculator.observe(sequence, 2, 1)
    speculator.measure(1, 2, 0.01)
    assert judged == [1]
