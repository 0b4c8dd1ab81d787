"""Which sequence gets drafts from which drafter, and how many. The engine asks before a step, reports after
it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.config import SpeculativeConfig
from backend.errors import RequestError
from backend.identifiers import CHOICE, quoted
from backend.speculative.backoff import Backoff, FailureGuard
from backend.speculative.draft_length import DrafterAcceptance, LengthModel, SequenceAcceptance
from backend.speculative.drafter import CapturingDrafter, DraftConstraint, Drafter
from backend.speculative.prediction import DEFAULT_TOKENS
from backend.speculative.tree import depth_of, first_tokens, level_sizes, shorten
from backend.types import Draft, DraftTree, Request, Sequence, SequenceStatus

NONE, PREDICTION = "none", "prediction"


@dataclass(slots=True, eq=False)
class _Source:
    """A drafter of one sequence."""

    sequence: Sequence
    drafter: Drafter
    limit: int  # draft tokens in a row
    acceptance: SequenceAcceptance
    # Of the present step:
    draft: Draft = field(default_factory=list)
    num_asked: int = 0  # tokens in a row; 0: it was not asked
    # A cheap drafter's guess that was not worth verifying: its position and first tokens.
    unverified: tuple[int, tuple[int, ...]] | None = None

    def begin_step(self) -> None:
        """Forget the last draft; learn from the output whether an unverified guess would have been right."""
        self.draft, self.num_asked = [], 0
        tokens = self.sequence.tokens
        if self.unverified is not None and len(tokens) > self.unverified[0]:
            position, guesses = self.unverified
            self.acceptance.observe(1, int(tokens[position] in guesses))
            self.unverified = None

    def set_length(self, length: int) -> None:
        """Shorten the draft to what is worth verifying."""
        if not length and self.draft:
            self.unverified = len(self.sequence.tokens), first_tokens(self.draft)
        self.draft = shorten(self.draft, length)


@dataclass(slots=True, eq=False)
class _Speculation:
    """One sequence that can get drafts."""

    sources: list[_Source]  # asked in turn until one has a draft worth verifying
    backoff: Backoff = field(default_factory=lambda: Backoff(1))  # while there is none: asking takes time
    used: _Source | None = None  # whose draft is being verified


class Speculator:
    """Owns the drafters. Costs nothing while no request wants drafts."""

    def __init__(self, config: SpeculativeConfig, drafters: Iterable[Drafter]) -> None:
        """`drafters`: all that may be asked for; `prediction` serves requests that bring one."""
        self.constraint: DraftConstraint | None = None
        self._config = config
        self._drafters = {drafter.name: drafter for drafter in drafters}
        self._guards = {name: FailureGuard(f"drafter {name!r}") for name in self._drafters}
        self._averages = {name: DrafterAcceptance() for name in self._drafters}
        self._capturing = {
            name: drafter for name, drafter in self._drafters.items() if isinstance(drafter, CapturingDrafter)
        }
        self._lengths = LengthModel()
        self._active: dict[Sequence, _Speculation] = {}
        self._step = 0
        self.tokens_by_drafter: dict[str, list[int]] = {}  # that were verified, and accepted
        # Of the present step:
        self._num_accepted = 0  # draft tokens
        self._verified: set[str] = set()  # drafters whose drafts were verified
        self._has_asked = False  # a drafter was asked, so that the step is no plain one
        self._has_worked = False  # one for which asking is not cheap

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
                shown = quoted(options.drafter, CHOICE, "of this name")
                raise RequestError(
                    f"drafter {shown} is not there; choose one of {known}", "speculative.drafter"
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
        sources = [
            _Source(sequence, self._drafters[name], limit, SequenceAcceptance(self._averages[name]))
            for name, limit in self._limits(sequence.request).items()
            if name in self._drafters and limit > 0
        ]
        if sources or (self.constraint is not None and sequence.request.grammar is not None):
            self._active[sequence] = _Speculation(sources)
        for source in sources:
            if drafter := self._capturing.get(source.drafter.name):
                drafter.capture.add(sequence)

    def _limits(self, request: Request) -> dict[str, int]:
        """Most draft tokens in a row, by drafter, in the order in which these are asked."""
        options, limits = request.draft, dict[str, int]()
        asked = options.max_tokens if options is not None else None
        name = self._config.drafter if options is None or options.drafter is None else options.drafter
        if request.prediction_token_ids and (options is None or options.drafter != NONE):
            limits[PREDICTION] = DEFAULT_TOKENS if asked is None else asked
        if name != NONE:
            most = self._config.max_tokens
            limits[name] = most if asked is None else min(asked, most)
        return limits

    def propose(
        self, num_running: int, *, has_prompts: bool = False, num_joining: int = 0
    ) -> dict[Sequence, Draft]:
        """Drafts for the sequences that decode next, usually fewer than these.

        `num_joining`: sequences that begin in this step or soon. In a step that computes prompts as well
        (`has_prompts`) the cost of drafts cannot be seen: only cheap drafters are asked then.
        """
        self._step += 1
        self._forget_step()
        num_present, is_adaptive = num_running + num_joining, self._config.adaptive
        for drafter in self._capturing.values():
            drafter.capture.begin_step(num_present, self._step, is_adaptive=is_adaptive)
        drafts: dict[Sequence, Draft] = {}
        asked: list[_Speculation] = []
        for sequence, speculation in self._active.items():
            speculation.used = None
            if not _decodes_next(sequence):
                continue
            constraint = self.constraint if sequence.request.grammar is not None else None
            if constraint is not None and (forced := constraint.forced(sequence)):
                drafts[sequence] = forced
            elif speculation.sources and not speculation.backoff.is_paused(self._step):
                asked.append(speculation)
        if asked and (not is_adaptive or self._lengths.may_draft(num_running, self._step)):
            self._ask(asked, num_running, only_cheap=has_prompts and is_adaptive)
            drafts |= {s.used.sequence: s.used.draft for s in asked if s.used is not None}
        return drafts

    def pass_over(self) -> None:
        """A step without drafts is planned, as the one before has not been read."""
        self._step += 1
        for speculation in self._active.values():
            speculation.used = None

    def may_propose(self, num_running: int) -> bool:
        """Whether `propose` may have drafts for the next step, when the step in flight has been read."""
        step, constraint = self._step + 1, self.constraint
        is_worth_it = not self._config.adaptive or not self._lengths.is_paused(num_running, step)
        for sequence, speculation in self._active.items():
            is_decoding = sequence.num_output_tokens + sequence.num_pending > 0
            if not is_decoding or sequence.status is not SequenceStatus.RUNNING:
                continue
            if is_worth_it and speculation.sources and not speculation.backoff.is_paused(step):
                return True
            if constraint is not None and sequence.request.grammar and constraint.may_force(sequence):
                return True
        return False

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """The sequence's draft was verified; `num_drafted` is the depth of a tree."""
        source = self._used(sequence)
        if source is None:
            return
        name = source.drafter.name
        self._guards[name].call(self._step, source.drafter.observe, sequence, num_drafted, num_accepted)
        num_declined = max(0, source.num_asked - depth_of(source.draft))
        source.acceptance.observe(num_drafted + num_declined, num_accepted)
        self._num_accepted += num_accepted
        tokens = self.tokens_by_drafter.setdefault(name, [0, 0])
        tokens[0] += num_drafted
        tokens[1] += num_accepted
        self._verified.add(name)

    def drafter_of(self, sequence: Sequence) -> str:
        """Whose draft is being verified: a drafter's name, or "grammar" for tokens that one forces."""
        source = self._used(sequence)
        return "grammar" if source is None else source.drafter.name

    def _used(self, sequence: Sequence) -> _Source | None:
        speculation = self._active.get(sequence)
        return speculation.used if speculation is not None else None

    def forget(self, sequence: Sequence) -> None:
        """The sequence was preempted, or has ended."""
        speculation = self._active.get(sequence)
        if speculation is None:
            return
        for source in speculation.sources:
            source.unverified = None
            self._guards[source.drafter.name].call(self._step, source.drafter.forget, sequence)
        if sequence.status is SequenceStatus.FINISHED:
            del self._active[sequence]
            for drafter in self._capturing.values():
                drafter.capture.forget(sequence)

    def drop_cached(self) -> None:
        """Have all drafters forget what their pages hold, and graphs."""
        for drafter in self._drafters.values():
            drafter.drop_cached()

    def measure(
        self, num_sequences: int, num_drafts: int, time_s: float, *, num_prompt_tokens: int = 0
    ) -> None:
        """Learn from the time of the step. In a step with prompts the cost of drafts cannot be seen."""
        saved_s = 0.0
        if not num_prompt_tokens:
            time_s -= sum(drafter.capture.step_s for drafter in self._capturing.values())
            if self._verified or (self._has_worked and not num_drafts):
                saved_s = self._lengths.observe_drafted(
                    num_sequences, num_drafts, self._num_accepted, time_s, self._step
                )
            elif not num_drafts and not self._has_asked:
                self._lengths.observe_plain(num_sequences, time_s)
        for name, drafter in self._capturing.items():
            drafter.capture.end_step(saved_s if name in self._verified else 0.0, self._step)
        self._forget_step()

    def _forget_step(self) -> None:
        self._num_accepted = 0
        self._verified.clear()
        self._has_asked = self._has_worked = False

    def _ask(self, asked: list[_Speculation], num_running: int, *, only_cheap: bool) -> None:
        """Choose whose draft each sequence gets; those without back off exponentially."""
        for rank in range(max(len(speculation.sources) for speculation in asked)):
            ranked = [s for s in asked if s.used is None and rank < len(s.sources)]
            self._draft([s.sources[rank] for s in ranked], num_running, only_cheap=only_cheap)
            for speculation in ranked:
                speculation.used = speculation.sources[rank] if speculation.sources[rank].draft else None
        if not self._config.adaptive:
            return
        for speculation in asked:
            last = speculation.sources[-1]
            if speculation.used is not None:
                speculation.backoff.succeed()
            elif last.drafter.is_cheap or not (only_cheap or last.num_asked):
                speculation.backoff.fail(self._step)  # else it waits for its turn, or catches up

    def _draft(self, sources: list[_Source], num_running: int, *, only_cheap: bool) -> None:
        """Give each source a draft that is worth verifying.

        Cheap drafters are asked before the lengths are chosen: where they have no guess there is no choice.
        """
        for source in sources:
            source.begin_step()
        able = [s for s in sources if self._may_ask(s) and (s.drafter.is_cheap or not only_cheap)]
        cheap = [s for s in able if s.drafter.is_cheap]
        self._propose([(s, s.limit) for s in cheap])
        candidates = [s for s in able if s.draft or not s.drafter.is_cheap]
        limits = [depth_of(s.draft) if s.drafter.is_cheap else s.limit for s in candidates]
        lengths = limits
        if self._config.adaptive:
            acceptances, num_sequences = [s.acceptance for s in candidates], max(num_running, len(candidates))
            lengths = self._lengths.choose(acceptances, limits, num_sequences, self._step)
        for source, length in zip(candidates, lengths, strict=True):
            source.set_length(length)
        costly = [(s, k) for s, k in zip(candidates, lengths, strict=True) if k and not s.drafter.is_cheap]
        self._propose(costly)
        for source, length in costly:
            source.num_asked = length
            if source.draft:
                source.acceptance.drafter.observe_sizes(level_sizes(source.draft), length)
        self._has_asked |= bool(cheap or costly)
        self._has_worked |= bool(costly)

    def _may_ask(self, source: _Source) -> bool:
        """False if the drafter failed recently, or the sequence's hidden states are not captured."""
        name = source.drafter.name
        capturing = self._capturing.get(name)
        has_states = capturing is None or capturing.capture.has(source.sequence)
        return has_states and not self._guards[name].is_paused(self._step)

    def _propose(self, asked: list[tuple[_Source, int]]) -> None:
        """Ask for drafts of these lengths, cut to what grammars allow."""
        by_drafter: dict[str, list[tuple[_Source, int]]] = {}
        for source, length in asked:
            by_drafter.setdefault(source.drafter.name, []).append((source, length))
        for name, own in by_drafter.items():
            drafter, asked_of = self._drafters[name], [source.sequence for source, _ in own]
            found = self._guards[name].call(self._step, _propose, drafter, asked_of, [k for _, k in own])
            if found is None:
                self._forget_all(drafter)
                continue
            for (source, length), guess in zip(own, found, strict=True):
                if guess and self.constraint is not None:
                    guess = _allowed(self.constraint, source.sequence, guess)
                source.draft = shorten(guess, length)

    def _forget_all(self, drafter: Drafter) -> None:
        """A drafter that failed must keep nothing: what it has may be wrong."""
        for sequence, speculation in self._active.items():
            if any(source.drafter is drafter for source in speculation.sources):
                self._guards[drafter.name].call(self._step, drafter.forget, sequence)


def _propose(drafter: Drafter, sequences: list[Sequence], lengths: list[int]) -> list[Draft]:
    return list(drafter.propose(sequences, lengths))


def _decodes_next(sequence: Sequence) -> bool:
    """Whether the next step computes just the last token of the sequence."""
    return (
        sequence.status is SequenceStatus.RUNNING
        and sequence.num_uncomputed_tokens == 1
        and sequence.num_output_tokens > 0
    )


def _allowed(constraint: DraftConstraint, sequence: Sequence, guess: Draft) -> Draft:
    """What the constraint allows of a guess."""
    if isinstance(guess, DraftTree):
        return constraint.prune(sequence, guess)
    return guess[: constraint.num_allowed(sequence, guess)]
