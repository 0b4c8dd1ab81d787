"""The seam between the engine and whatever guesses: a Drafter proposes tokens, verification judges them.

A drafter can be wrong in any way without harm to the output. It may be called for a sequence in any step in
which that decodes, and need not be: `sequence.tokens` always says what has become of it since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from backend.types import Draft, DraftTree, Plan, Sequence

if TYPE_CHECKING:
    from torch import Tensor

    from backend.layers.step_input import StepInput

LEAST_REACHED = 0.3
"""Chains of a network go on while it thinks the last token this likely to be accepted: each by itself, an
EAGLE head's as long as any of them does."""


class Drafter(Protocol):
    """Guesses what comes next. What it keeps per sequence lasts until `forget`."""

    @property
    def name(self) -> str:
        """As in policies, requests and metrics."""
        ...

    @property
    def is_cheap(self) -> bool:
        """True when proposing costs next to nothing: it is then also asked when nothing will be verified."""
        ...

    def propose(self, sequences: list[Sequence], ks: list[int]) -> Iterable[Draft]:
        """For each sequence at most k tokens to follow its last; fewer or none when it has no good guess.

        Or a DraftTree at most k deep, with as many nodes as the drafter thinks fit: k is chosen knowing how
        many it had for each level before. All sequences decode: their tokens but the last are in KV memory.
        """
        ...

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Of the tokens last proposed so many were verified, and accepted: `sequence.tokens` has those.

        Of a tree, `num_drafted` is the depth.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended, or lost its row and pages (and may come back). Idempotent."""
        ...


class StepObserver(Protocol):
    """A drafter that reads what the model thinks. Hand it to `ModelRunner.observers`."""

    @property
    def wants_layers(self) -> bool:
        """Whether it would read what leaves each layer in the step to come."""
        ...

    def see(self, plan: Plan, step: StepInput, layers: list[Tensor], hidden: Tensor) -> None:
        """The residual stream [T, D] behind the last layer, of a step's tokens in the order of its chunks.

        Drafts are among them: `sequence.num_computed_tokens` says later up to where they were accepted. Of a
        tree, accepted nodes lie where a chain's tokens would: side by side, in front of the others.
        `layers` are the streams behind the layers before the last; [] unless an observer wants them.
        """
        ...


class DraftConstraint(Protocol):
    """What else knows which tokens may come: a grammar."""

    def forced(self, sequence: Sequence) -> list[int]:
        """Tokens that must come next whatever the model says, in order; mostly none."""
        ...

    def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
        """How many of `draft`, from its beginning, may come; the rest would surely be rejected."""
        ...

    def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
        """Of a tree the nodes that may come."""
        ...
