"""The seam between the engine and what guesses: a Drafter proposes tokens, verification judges them.

A drafter can be wrong in any way without harm to the output. It may be called for a sequence in any step in
which that decodes, and need not be: `sequence.tokens` always holds its text so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from backend.speculative import MAX_DOUBLINGS, PAUSE_STEPS
from backend.speculative.draft_length import GainAccount, batch_class
from backend.types import Draft, DraftTree, Plan, Sequence

if TYPE_CHECKING:
    from torch import Tensor

    from backend.layers.step_input import StepInput


class Drafter(Protocol):
    """Guesses what comes next. What it keeps per sequence lasts until `forget`."""

    @property
    def name(self) -> str:
        """The drafter's name in policies, requests and metrics."""
        ...

    @property
    def is_cheap(self) -> bool:
        """True when proposing costs next to nothing: it is then asked before the draft length is chosen."""
        ...

    def propose(self, sequences: list[Sequence], ks: list[int]) -> Iterable[Draft]:
        """For each sequence at most k tokens to follow its last; fewer or none without a good guess.

        Or a DraftTree at most k deep, with as many nodes as the drafter sees fit: k is chosen by how many it
        had per level before. All sequences decode: the keys and values of all tokens but the last are stored.
        """
        ...

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """The tokens last proposed were verified; `sequence.tokens` already has the accepted ones.

        `num_drafted` is the depth of a tree. By default nothing is learned.
        """
        return

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended, or lost its row and pages (and may come back). Idempotent.

        By default nothing was kept.
        """
        return

    def drop_cached(self) -> None:
        """Forget what pages hold, and graphs: no sequence is there, and the device loses its memory.

        By default there is neither.
        """
        return


class StepObserver(Protocol):
    """A drafter that reads hidden states. Hand it to `ModelRunner.observers`."""

    @property
    def wants_layers(self) -> bool:
        """Whether it reads the output of every layer in the next step."""
        ...

    def see(self, plan: Plan, step: StepInput, layers: list[Tensor], hidden: Tensor) -> None:
        """The residual stream [T, D] after the last layer, of a step's tokens in the order of its chunks.

        Drafts are among them: `sequence.num_computed_tokens` says later which were accepted. Accepted nodes
        of a tree are where a chain's tokens would be: side by side, before the others. `layers` are the
        streams after the layers before the last; [] unless an observer wants them.
        """
        ...


class Capture:
    """A drafter's hidden-state capture: of which sequences, and whether now, for drafts must repay its time.

    Captured are sequences that begin while it is on: without its prompt a sequence gets few drafts. A trial
    takes time in every step, prompts included, so that even the first pause is long.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self.sequences: set[Sequence] = set()  # those that may ask for drafts
        self.is_on = True  # in the present step
        self.step_s = 0.0  # spent in the present step
        self._clock = clock
        self._added: list[Sequence] = []  # since the last step
        self._accounts: dict[int, GainAccount] = {}  # by batch size, a class per power of two
        self._account = GainAccount()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time spent inside as capture."""
        began_s = self._clock()
        yield
        self.step_s += self._clock() - began_s

    def has(self, sequence: Sequence) -> bool:
        """Whether the sequence is captured now."""
        return self.is_on and sequence in self.sequences

    def add(self, sequence: Sequence) -> None:
        """A sequence that may ask for drafts."""
        self._added.append(sequence)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self.sequences.discard(sequence)
        if sequence in self._added:
            self._added.remove(sequence)

    def begin_step(self, num_present: int, step: int, *, is_adaptive: bool) -> None:
        """`num_present`: sequences that run, or begin to. Without adaptation capture is always on."""
        first_pause_steps = PAUSE_STEPS << MAX_DOUBLINGS
        size = batch_class(num_present) // 2
        self._account = self._accounts.setdefault(size, GainAccount(first_pause_steps))
        self._account.judge(step)
        self.is_on = not is_adaptive or not self._account.is_paused(step)
        if self.is_on:
            self.sequences.update(self._added)
        self._added.clear()

    def end_step(self, saved_s: float, step: int) -> None:
        """The drafts of the step saved so much time."""
        if self.step_s:
            self._account.add(saved_s, self.step_s, step)
        self.step_s = 0.0


@runtime_checkable
class CapturingDrafter(Drafter, Protocol):
    """A drafter that works in every step to be able to draft later."""

    @property
    def capture(self) -> Capture:
        """Its own."""
        ...


class DraftConstraint(Protocol):
    """What else knows which tokens may come: a grammar."""

    def forced(self, sequence: Sequence) -> list[int]:
        """Tokens that must come next whatever the model says, in order; usually none."""
        ...

    def may_force(self, sequence: Sequence) -> bool:
        """Whether `forced` may have any, of a sequence whose last token may not be known yet."""
        ...

    def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
        """How many of `draft`, from its beginning, are allowed; the rest would be rejected."""
        ...

    def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
        """The tree without nodes that are not allowed."""
        ...
