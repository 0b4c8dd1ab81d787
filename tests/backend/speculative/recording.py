"""A drafter that notes what it was asked and what it said."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.speculative.drafter import Capture, Drafter
from backend.speculative.tree import depth_of
from backend.types import Draft, DraftTree, Sequence


@dataclass
class Said:
    """One sequence in one round."""

    request_id: str
    tokens: list[int]  # of the sequence then
    k: int
    draft: list[int]


@dataclass
class RecordingDrafter:
    """Another drafter, of which every draft is recorded."""

    inner: Drafter
    said: list[Said] = field(default_factory=list)
    most_together: int = 0
    is_cheap: bool = False

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def capture(self) -> Capture:
        """Its own, if it has any: else this is no CapturingDrafter either."""
        found: Capture = self.inner.capture  # type: ignore[attr-defined]
        return found

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        before = [list(sequence.tokens) for sequence in sequences]
        drafts = list(self.inner.propose(sequences, ks))
        for sequence, tokens, k, draft in zip(sequences, before, ks, drafts, strict=True):
            assert depth_of(draft) <= k and sequence.tokens == tokens
            chain = list(draft.tokens) if isinstance(draft, DraftTree) else draft
            self.said.append(Said(sequence.request.request_id, tokens, k, chain))
        self.most_together = max(self.most_together, sum(map(bool, drafts)))
        return drafts

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        self.inner.observe(sequence, num_drafted, num_accepted)

    def forget(self, sequence: Sequence) -> None:
        self.inner.forget(sequence)

    def drop_cached(self) -> None:
        self.inner.drop_cached()
