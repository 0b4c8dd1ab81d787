"""The seam between the engine and what guesses: a Drafter proposes tokens, verification judges them.

A drafter can be wrong in any way without harm to the output. It may be called for a sequence in any step in
which that decodes, and need not be: `sequence.tokens` always says what has become of it since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from backend.types import Draft, DraftTree, Plan, Sequence

if TYPE_CHECKING:
    from torch import Tensor

    from backend.layers.step_input import StepInput


class Drafter(Protocol):
    """Guesses what comes next. What it keeps per sequence lasts until `forget`."""

    @property
    def name(self) -> str:
        """As in policies, requests and metrics."""
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
    """Control of a drafter's hidden-state capture: of which sequences, whether now, and the time it took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self.sequences: set[Sequence] = set()  # those that may ask for drafts
        self.is_on = True  # in the present step
        self.step_s = 0.0  # spent in the present step
        self._clock = clock

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time spent inside as capture."""
        began_s = self._clock()
        yield
        self.step_s += self._clock() - began_s


@runtime_checkable
class CapturingDrafter(Drafter, Protocol):
    """A drafter that works in every step to be able to draft later. The Speculator controls when it pays."""

    @property
    def capture(self) -> Capture:
        """Its own."""
        ...


class DraftConstraint(Protocol):
    """What else knows which tokens may come: a grammar."""

    def forced(self, sequence: Sequence) -> list[int]:
        """Tokens that must come next whatever the model says, in order; usually none."""
        ...

    def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
        """How many of `draft`, from its beginning, are allowed; the rest would be rejected."""
        ...

    def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
        """The tree without nodes that are not allowed."""
        ...
