"""The seam between the engine and the model: a Runner turns a Plan into tokens. No torch.

A runner that `is_ahead` computes on a device that works while the host goes on: the engine launches a step
before it has read the one before, and the device alone knows the tokens between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from backend.kv.checkpoints import StateCopy
from backend.types import Plan, Sequence, TokenLogprobs


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What the engine needs to know about its runner's model and memory."""

    vocab_size: int
    num_pages: int
    max_model_tokens: int
    eos_token_ids: frozenset[int]
    revision: str  # content hash of the weights; part of every page's identity
    kv_dtype: str
    max_running: int = 1 << 30  # sequences that recurrent states are there for
    max_draft_tokens: int | None = None  # verified per step and sequence; None: any number, also trees
    num_checkpoints: int | None = None  # kept copies of recurrent states; None: the model has no states
    window: int = 0  # tokens, of the layers that have these pages
    num_window_pages: int | None = None  # None: all layers have pages with the same numbers

    @property
    def num_states(self) -> int:
        """Slots of recurrent states: of running sequences by row, then of checkpoints."""
        return self.max_running + (self.num_checkpoints or 0)


@dataclass(slots=True)
class StepResult:
    """What one step computed, in plan order: tokens of the R sampling chunks, soundness of all B."""

    token_ids: list[int]
    is_sound: list[bool]  # False: the chunk's activations are not finite; its token and KV are invalid
    accepted: dict[int, list[int]] = field(default_factory=dict)  # i → accepted drafts before token_ids[i]
    # By index into token_ids: one record for each accepted draft, then the token's own.
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs | None]] = field(default_factory=dict)
    mask_s: float = 0.0  # spent on grammar masks

    def select(self, keep: list[int], is_sound: list[bool]) -> StepResult:
        """The entries `keep` of the R, renumbered, of chunks that are sound as given."""
        places = {old: new for new, old in enumerate(keep)}
        return StepResult(
            [self.token_ids[i] for i in keep],
            is_sound,
            {places[i]: tokens for i, tokens in self.accepted.items() if i in places},
            {places[i]: records for i, records in self.logprobs.items() if i in places},
            {places[i]: records for i, records in self.prompt_logprobs.items() if i in places},
            self.mask_s,
        )


class LaunchedStep(Protocol):
    """A step whose forward pass is queued on the device."""

    def draw(self) -> None:
        """Queue edits, masks and the draw. Call it once, when the step before has been read."""
        ...

    def read(self) -> StepResult:
        """Wait for the step's one download. Call it once, before the next step's `draw`."""
        ...


class Runner(Protocol):
    """Drives a model. The state that it keeps of a sequence lasts until `forget`."""

    @property
    def facts(self) -> RunnerFacts:
        """Constant while the process lives."""
        ...

    @property
    def is_ahead(self) -> bool:
        """Whether a step may be launched before the last one has been read; False where nothing overlaps."""
        ...

    def launch(self, plan: Plan) -> LaunchedStep:
        """Queue a plan's forward pass. A token that its sequence has pending is the row's last draw.

        Steps with drafts are read at once. On an error nothing has changed.
        """
        ...

    def run(self, plan: Plan) -> StepResult:
        """Launch, draw and read. On an error, only the KV memory of those chunks may have changed."""
        ...

    def copy_states(self, copies: list[StateCopy]) -> None:
        """Copy recurrent states from slot to slot, one after the other."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop the sequence's row: it was finished, aborted or preempted."""
        ...
