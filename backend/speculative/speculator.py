"""Which sequence gets drafts from whom, and how many. The engine asks before a step and reports after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.config import SpeculativeConfig
from backend.errors import RequestError
from backend.speculative.acceptance import Acceptance, prior_acceptance
from backend.speculative.adaptive import LengthPolicy
from backend.speculative.base import DraftConstraint, Drafter
from backend.speculative.following import Follower, Following
from backend.speculative.rests import Rests
from backend.speculative.tree import depth_of, first_tokens, level_sizes, shorten
from backend.types import Draft, DraftTree, Request, Sequence, SequenceStatus

NONE, PREDICTION = "none", "prediction"
PREDICTION_TOKENS = 24
"""Drafted per step from a prediction, unless the request says: a right one is right for long."""

FIRST_PAUSE_STEPS, LONGEST_PAUSE_STEPS = 3, 15
"""After a step in which no guess was worth verifying, drafters rest for so many; the next time for longer."""

LONGEST_SLEEP_STEPS = 15
"""The same where the policy says for how long none will be."""

MEASURE_ASLEEP_EVERY_STEPS = 4
"""Of steps in which nobody is asked every fourth is measured: looking costs time too."""

PATIENCE_STEPS = 6
MISS_EVERY_STEPS, MISS_AT_LEAST_EVERY_STEPS = 4, 16
"""A sequence for which nobody had a guess so often in a row is asked for at every fourth step only, and the
more seldom the longer nobody has one. At the same steps as others: asking for none costs nothing."""


@dataclass(slots=True, eq=False)
class _Speculation:
    """One sequence that may get drafts."""

    sequence: Sequence
    drafters: list[Drafter]  # asked in turn until one has a guess
    limits: list[int]  # most tokens from each
    acceptances: list[Acceptance]
    used: int = -1  # whose drafts are being verified, index into drafters
    declined: int = 0  # tokens in a row that this one was asked for and did not give
    shadow: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by drafter: first tokens, not verified
    seen: int = 0  # tokens of the sequence when the shadow was cast
    misses: int = 0  # times in a row that nobody had a guess, or only one that would have been wrong
    wake_step: int = 0  # not asked before
    skipped_at: int = 0  # tokens of the sequence when drafts for it were thought not to pay; 0: they were

    @property
    def is_cheap(self) -> bool:
        """Whether asking all of its drafters costs next to nothing."""
        return all(drafter.is_cheap for drafter in self.drafters)

    def sleep(self, step: int) -> None:
        """Nobody had a guess: decide when it is worth asking again, for that costs time as well."""
        self.misses += 1
        if self.misses > PATIENCE_STEPS:
            doublings = (self.misses - PATIENCE_STEPS - 1) // PATIENCE_STEPS
            every = min(MISS_EVERY_STEPS << doublings, MISS_AT_LEAST_EVERY_STEPS)
            self.wake_step = (step // every + 1) * every


class Speculator:
    """Owns the drafters. Costs nothing while no request wants drafts."""

    def __init__(
        self, config: SpeculativeConfig, drafters: Iterable[Drafter], policy: LengthPolicy | None = None
    ) -> None:
        """`drafters`: all that may be asked for; `prediction` serves requests that bring one."""
        self.constraint: DraftConstraint | None = None
        self.policy = policy or LengthPolicy(is_adaptive=config.adaptive)
        self._config = config
        self._drafters = {drafter.name: drafter for drafter in drafters}
        self._priors: dict[str, Acceptance] = {}
        self._active: dict[Sequence, _Speculation] = {}
        self._constrained: dict[Sequence, _Speculation] = {}  # of these, those with a grammar
        self._followers = [drafter for drafter in self._drafters.values() if isinstance(drafter, Follower)]
        self._accepted = 0  # draft tokens of the present step
        self._verified: set[str] = set()  # drafters whose drafts the present step held
        self._step = 0
        self._wake_step = 0  # nobody is asked before: asking costs time as well
        self._wants_times = True  # until then, every step is to be measured
        self._unmeasured = 0  # steps, of which the policy is to be told
        self._pause_steps = FIRST_PAUSE_STEPS
        self._is_vain = False  # in this step nobody's guess was worth verifying, or all drafters rest
        self._all_rest = False  # all drafters that somebody may have, when these were last to be asked
        self._declined: set[str] = set()  # drafters that cost something, of whom nobody was to have drafts …
        self._wanted: set[str] = set()  # … or somebody was: in this step
        self._has_worked = False  # in this step a drafter that is not cheap was asked
        self._only_cheap = False  # in this step drafters that cost something are not asked
        self._rests = Rests()  # of drafters that failed
        self._resting: set[str] = set()  # these, and who has not read along and so cannot draft

    @property
    def has_work(self) -> bool:
        """True while a sequence may get drafts."""
        return bool(self._active)

    def check(self, request: Request, vocab_size: int) -> None:
        """Raise RequestError when the request wants an unknown drafter or predicts unknown tokens."""
        options = request.draft
        if options is not None:
            if options.drafter not in (None, NONE) and options.drafter not in self._drafters:
                known = ", ".join([NONE, *sorted(self._drafters)])
                raise RequestError(
                    f"drafter {options.drafter!r} is not there; choose one of {known}", "speculative.drafter"
                )
            if options.max_tokens is not None and options.max_tokens < 0:
                raise RequestError(
                    f"speculative.max_tokens is {options.max_tokens!r}; it must be 0 or more",
                    "speculative.max_tokens",
                )
        predicted = request.prediction_token_ids
        if predicted and not 0 <= min(predicted) <= max(predicted) < vocab_size:
            raise RequestError(
                f"the prediction holds token ids outside of the vocabulary of {vocab_size}", "prediction"
            )

    def add(self, sequence: Sequence) -> None:
        """A request has been admitted."""
        request = sequence.request
        options = request.draft
        asked = options.max_tokens if options is not None else None
        name = self._config.drafter if options is None or options.drafter is None else options.drafter
        names: dict[str, int] = {}
        if request.prediction_token_ids and (options is None or options.drafter != NONE):
            names[PREDICTION] = PREDICTION_TOKENS if asked is None else asked
        if name != NONE:
            names[name] = self._config.max_tokens if asked is None else min(asked, self._config.max_tokens)
        found = {name: limit for name, limit in names.items() if name in self._drafters and limit > 0}
        for follower in self._followers:
            if follower.name in found and not self._try_follow(follower, sequence):
                del found[follower.name]
        if not found and (self.constraint is None or request.grammar is None):
            return
        if not self._all_rest or not self._resting.issuperset(found):
            self._wake_step, self._pause_steps = 0, FIRST_PAUSE_STEPS
        self._active[sequence] = _Speculation(
            sequence,
            [self._drafters[name] for name in found],
            list(found.values()),
            [self._prior(name).child() for name in found],
        )
        if request.grammar is not None:
            self._constrained[sequence] = self._active[sequence]

    def _try_follow(self, follower: Follower, sequence: Sequence) -> bool:
        if self._config.adaptive:
            return follower.following.admit(sequence)
        follower.following.sequences.add(sequence)
        return True

    @property
    def is_asleep(self) -> bool:
        """Whether nobody is to be asked for drafts in the next step."""
        return self._step + 1 < self._wake_step and not self._constrained

    def propose(
        self, num_running: int, *, has_prompts: bool = False, num_joining: int = 0
    ) -> dict[Sequence, Draft]:
        """Drafts for the sequences that decode next, mostly fewer than these.

        `num_joining`: further ones, which will begin in this step or soon.
        Beside prompts nobody sees what drafts cost: drafters that are not cheap are not asked then.
        """
        is_asleep = self.is_asleep
        self._begin_step(num_running + num_joining)
        if is_asleep:
            return {}
        is_full = self._step >= self._wake_step
        waiting = asking = self._ready(self._active if is_full else self._constrained)
        drafts: dict[Sequence, Draft] = {}
        if self.constraint is not None:
            asking = self._force(self.constraint, asking, drafts)
        if is_full:
            self._pass_by(num_running)
            self._only_cheap = has_prompts and self._config.adaptive
            self._ask_all(asking, num_running, drafts)
            for speculation in waiting:
                if speculation.sequence in drafts:
                    speculation.misses = speculation.wake_step = 0
                elif self._may_have_asked(speculation):
                    speculation.sleep(self._step)
            self._tell_declined(num_running)
            self._plan_next(bool(drafts), num_running)
        return drafts

    def _may_have_asked(self, speculation: _Speculation) -> bool:
        """Whether it was for want of a guess that nobody had one."""
        if self._only_cheap and not speculation.is_cheap:
            return False
        return not self._resting or not self._resting.issuperset(d.name for d in speculation.drafters)

    def _ask_all(self, asking: list[_Speculation], num_running: int, drafts: dict[Sequence, Draft]) -> None:
        """Ask each one's drafters in turn until one has a guess that is worth verifying."""
        unread = {each.name for each in self._followers if each.following.is_resting}
        self._resting = unread | self._rests.names
        self._all_rest = False
        if self._resting and asking:
            asking = [s for s in asking if any(d.name not in self._resting for d in s.drafters)]
            self._is_vain = not asking
            self._all_rest = self._is_vain and all(
                drafter.name in self._resting for s in self._active.values() for drafter in s.drafters
            )
        self.policy.begin_step()
        for rank in range(max((len(s.drafters) for s in asking), default=0)):
            ranked = [s for s in asking if rank < len(s.drafters)]
            asking = self._ask(rank, ranked, num_running, drafts)

    def _begin_step(self, num_present: int) -> None:
        self._step += 1
        self._rests.begin_step()
        # Not when a step is measured: not all of them are.
        self._accepted = 0
        self._verified.clear()
        self._declined.clear()
        self._wanted.clear()
        self._is_vain = self._has_worked = False
        for follower in self._followers:
            following = follower.following
            if self._config.adaptive:
                has_rested = following.is_resting
                following.begin_step(num_present)
                self._wake_if(has_rested and not following.is_resting)
            following.step_s = 0.0

    def _plan_next(self, has_drafts: bool, num_running: int) -> None:
        """After everybody was asked: when to ask again."""
        self._wake_step = 0
        if has_drafts:
            self._pause_steps = FIRST_PAUSE_STEPS
            return
        if self._is_vain:
            wanted = self.policy.costs.plain_steps_wanted(num_running)
            self._wants_times = wanted > 0
            sleep = min(self.policy.plain_steps(num_running), LONGEST_SLEEP_STEPS)
            sleep += bool(sleep and wanted)  # the present one is not measured
            if sleep:
                self._wake_step = self._step + sleep
            else:
                self._wake_step = self._step + 1 + self._pause_steps
                self._pause_steps = min(2 * self._pause_steps + 1, LONGEST_PAUSE_STEPS)
        first_awake = min((s.wake_step for s in self._active.values()), default=0)
        self._wake_step = max(self._wake_step, first_awake)

    def _ready(self, asked: dict[Sequence, _Speculation]) -> list[_Speculation]:
        """Those that decode next and for which it is worth asking."""
        ready: list[_Speculation] = []
        for sequence, speculation in asked.items():
            if speculation.wake_step > self._step and sequence not in self._constrained:
                continue
            if (
                sequence.status is SequenceStatus.RUNNING
                and sequence.num_uncomputed_tokens == 1
                and sequence.num_output_tokens > 0
            ):
                self._settle_shadow(speculation)
                speculation.used, speculation.declined = -1, 0
                ready.append(speculation)
        return ready

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """The sequence's drafts were verified; of a tree, `num_drafted` is the depth."""
        speculation = self._active.get(sequence)
        if speculation is None or speculation.used < 0:
            return
        drafter = speculation.drafters[speculation.used]
        with self._rests.attempt(drafter.name):
            drafter.observe(sequence, num_drafted, num_accepted)
        self._accepted += num_accepted
        self._verified.add(drafter.name)
        self._learn(speculation, speculation.used, num_drafted + speculation.declined, num_accepted)

    def is_from_prediction(self, sequence: Sequence) -> bool:
        """Whether the draft being verified is a piece of the request's prediction."""
        speculation = self._active.get(sequence)
        if speculation is None or speculation.used < 0:
            return False
        return speculation.drafters[speculation.used].name == PREDICTION

    def forget(self, sequence: Sequence) -> None:
        """The sequence was preempted, or has ended."""
        speculation = self._active.get(sequence)
        if speculation is None:
            return
        speculation.shadow.clear()
        for drafter in speculation.drafters:
            with self._rests.attempt(drafter.name):
                drafter.forget(sequence)
        if sequence.status is SequenceStatus.FINISHED:
            if not self._all_rest:
                self._wake_step = 0  # for fewer sequences drafts may pay
            del self._active[sequence]
            self._constrained.pop(sequence, None)
            for follower in self._followers:
                follower.following.sequences.discard(sequence)

    def measure(
        self, num_sequences: int, num_drafts: int, time_s: float, *, num_prompt_tokens: int = 0
    ) -> None:
        """A step has taken so long. Beside prompts nobody sees what drafts cost."""
        for follower in self._followers:
            self._pass_rest(follower.following, time_s)
        if num_prompt_tokens:
            return
        is_counted = self._step >= self._wake_step or self._wants_times
        is_counted |= self._unmeasured + 1 >= MEASURE_ASLEEP_EVERY_STEPS
        if not num_drafts and (self._is_vain or self._has_worked or not is_counted):
            self._unmeasured += 1  # asking in vain is no part of what a plain step takes
            return
        self._pass_by(num_sequences)
        time_s -= sum(follower.following.step_s for follower in self._followers)
        self.policy.costs.observe(num_sequences, num_drafts, time_s)
        if num_drafts and not self._verified:
            return  # a grammar forced them: nobody chose to try
        saved_s = self.policy.judge(num_sequences, num_drafts, self._accepted, time_s)
        for follower in self._followers:
            if follower.name in self._verified:
                follower.following.save(saved_s)

    def _pass_rest(self, following: Following, time_s: float) -> None:
        has_rested = following.is_resting
        following.pass_by(time_s)
        self._wake_if(has_rested and not following.is_resting)

    def _wake_if(self, rest_is_over: bool) -> None:  # noqa: FBT001
        """Nobody is to sleep while a trial of reading begins, or in a batch in which it does not rest."""
        if rest_is_over:
            self._all_rest = False
            self._wake_step, self._pause_steps = 0, FIRST_PAUSE_STEPS

    def _pass_by(self, num_sequences: int) -> None:
        if self._unmeasured:
            self.policy.pass_by(num_sequences, self._unmeasured)
            self._unmeasured = 0

    def _learn(self, speculation: _Speculation, rank: int, num_drafted: int, num_accepted: int) -> None:
        acceptance = speculation.acceptances[rank]
        acceptance.places.observe(acceptance.rate, num_drafted, num_accepted)
        acceptance.observe(num_drafted, num_accepted)
        self._prior(speculation.drafters[rank].name).observe(num_drafted, num_accepted)

    def _prior(self, name: str) -> Acceptance:
        return self._priors.setdefault(name, prior_acceptance())

    def _force(
        self, constraint: DraftConstraint, asking: list[_Speculation], drafts: dict[Sequence, Draft]
    ) -> list[_Speculation]:
        """Take what must come next as the draft; whoever is free to go on is returned."""
        free: list[_Speculation] = []
        for speculation in asking:
            if forced := constraint.forced(speculation.sequence):
                drafts[speculation.sequence] = forced
            else:
                free.append(speculation)
        return free

    def _ask(
        self, rank: int, asked: list[_Speculation], num_running: int, drafts: dict[Sequence, Draft]
    ) -> list[_Speculation]:
        """Ask each sequence's drafter of this rank; returns those that get no draft from it.

        Cheap drafters are asked before the lengths are chosen: where they have no guess there is no choice.
        """
        able = [s for s in asked if s.drafters[rank].name not in self._resting]
        cheap = [s for s in able if s.drafters[rank].is_cheap]
        guesses = self._guesses(rank, cheap, [s.limits[rank] for s in cheap])
        found = [(s, guess) for s, guess in zip(cheap, guesses, strict=True) if guess]
        dear = [] if self._only_cheap else [s for s in able if not s.drafters[rank].is_cheap]
        candidates = [s for s, _ in found] + dear
        limits = [depth_of(guess) for _, guess in found] + [s.limits[rank] for s in dear]
        ks = self._choose(rank, candidates, limits, num_running)
        if candidates and not any(ks) and self._config.adaptive:
            self._is_vain = True
        for (speculation, guess), k in zip(found, ks, strict=False):
            if k == 0:
                speculation.shadow[rank] = first_tokens(guess)
                speculation.seen = len(speculation.sequence.tokens)
        wanted = [(s, k) for s, k in zip(dear, ks[len(found) :], strict=True) if k > 0]
        self._has_worked |= bool(wanted)
        self._wanted.update(s.drafters[rank].name for s, _ in wanted)
        guesses = self._guesses(rank, [s for s, _ in wanted], [k for _, k in wanted])
        found = [(s, shorten(guess, k)) for (s, guess), k in zip(found, ks, strict=False)]
        for (speculation, k), guess in zip(wanted, guesses, strict=True):
            speculation.declined = k - depth_of(guess)
            found.append((speculation, guess))
        for speculation, draft in found:
            if draft:
                drafts[speculation.sequence] = draft
                speculation.used = rank
        return [s for s in asked if s.sequence not in drafts]

    def _choose(
        self, rank: int, candidates: list[_Speculation], limits: list[int], num_running: int
    ) -> list[int]:
        """The lengths, where those who were skipped are thought to be more like others by now.

        Of cheap drafters no such guess is needed: what they would have said was compared.
        """
        for speculation in candidates:
            if speculation.skipped_at and not speculation.drafters[rank].is_cheap:
                num_tokens = len(speculation.sequence.tokens) - speculation.skipped_at
                usual_rate = self._prior(speculation.drafters[rank].name).rate
                speculation.acceptances[rank].drift(usual_rate, num_tokens)
        ks = self.policy.choose([s.acceptances[rank] for s in candidates], limits, num_running)
        if not any(ks):
            names = {s.drafters[rank].name for s in candidates if not s.drafters[rank].is_cheap}
            self._declined |= names
            for name in names:  # nor is worse to be thought of those to come than of these
                self._prior(name).rest(self.policy.forgotten)
        for speculation, k in zip(candidates, ks, strict=False):
            speculation.skipped_at = 0 if k else len(speculation.sequence.tokens)
        return ks

    def _tell_declined(self, num_running: int) -> None:
        """Who reads along learns that its drafts are not worth having, unless that is not known."""
        if self._declined and not self.policy.costs.plain_steps_wanted(num_running):
            for follower in self._followers:
                if follower.name in self._declined - self._wanted:
                    follower.following.decline()

    def _guesses(self, rank: int, asked: list[_Speculation], ks: list[int]) -> list[Draft]:
        """What each one's drafter of this rank says, cut to what may come."""
        by_drafter: dict[str, list[int]] = {}
        for index, speculation in enumerate(asked):
            by_drafter.setdefault(speculation.drafters[rank].name, []).append(index)
        guesses: list[Draft] = [[]] * len(asked)
        for name, indices in by_drafter.items():
            sequences = [asked[index].sequence for index in indices]
            found = self._propose(self._drafters[name], sequences, [ks[index] for index in indices])
            for index, guess in zip(indices, found, strict=True):
                if guess and self.constraint is not None:
                    guess = _allowed(self.constraint, asked[index].sequence, guess)
                if guess and not self._drafters[name].is_cheap:  # the cheap ones are asked for anything
                    self._prior(name).places.observe_sizes(level_sizes(guess), ks[index])
                guesses[index] = shorten(guess, ks[index])
        return guesses

    def _propose(self, drafter: Drafter, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        """What the drafter says: nothing when it fails, and then it is to keep nothing of anybody either."""
        found: list[Draft] = []
        with self._rests.attempt(drafter.name):
            found = list(drafter.propose(sequences, ks))
        if found:
            return found
        for speculation in self._active.values():
            if drafter in speculation.drafters:
                with self._rests.attempt(drafter.name):
                    drafter.forget(speculation.sequence)
        return [[] for _ in sequences]

    def _settle_shadow(self, speculation: _Speculation) -> None:
        """Learn from guesses that were not verified whether they would have been right."""
        tokens, seen = speculation.sequence.tokens, speculation.seen
        if speculation.shadow and len(tokens) > seen:
            for rank, guesses in speculation.shadow.items():
                is_right = tokens[seen] in guesses
                self._learn(speculation, rank, 1, int(is_right))
                if is_right:
                    speculation.misses = 0
            speculation.shadow.clear()


def _allowed(constraint: DraftConstraint, sequence: Sequence, guess: Draft) -> Draft:
    """What may come of a guess."""
    if isinstance(guess, DraftTree):
        return constraint.prune(sequence, guess)
    return guess[: constraint.num_allowed(sequence, guess)]
