"""Drafts of a small model of its own, with its own keys and values, pages and prefix tree.

It reads what the target has written since the last round, then its own drafts, all sequences in one pass per
token. Keys and values of drafts stay where they were accepted. A sequence that is new here, or was preempted,
catches up first: with prefix hits in the drafter's own tree, then by computing, a part in each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.kv.manager import KVManager
from backend.speculative import MIN_PATH_PROBABILITY
from backend.speculative.draft_rounds import DraftRounds
from backend.types import Sequence

MOST_BEGINS = 8
"""Tokens that a sequence may bring to a round; who is further behind catches up before."""

CATCH_UP_TOKENS = 512
"""Computed per step for sequences that are behind: nobody else waits longer for them."""


@dataclass(slots=True)
class _Mirror:
    """A sequence as the drafter has it."""

    own: Sequence  # the same tokens, the drafter's own pages
    written: list[int] = field(default_factory=list)  # tokens computed behind what counts, maybe rejected


class DraftModelDrafter:
    """Chains of greedy tokens from a small model."""

    name = "draft_model"
    is_cheap = False

    def __init__(self, rounds: DraftRounds, num_pages: int, *, prefix_cache: bool = True) -> None:
        self.kv = KVManager(num_pages, revision="", kv_dtype="", prefix_cache=prefix_cache)
        self._rounds = rounds
        self._mirrors: dict[Sequence, _Mirror] = {}

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """See Drafter."""
        longest = max(ks)
        left = CATCH_UP_TOKENS
        drafts: list[list[int]] = [[] for _ in sequences]
        ready: list[int] = []
        for index, sequence in enumerate(sequences):
            mirror = self._mirror(sequence)
            own = mirror.own
            end = len(own.tokens) + longest - 1
            if end > self._rounds.max_position_tokens:
                continue
            if own.num_uncomputed_tokens > MOST_BEGINS and left > 0:
                left -= self._catch_up(own, left)
            if own.num_uncomputed_tokens <= MOST_BEGINS and self.kv.grow(own, end) == end:
                ready.append(index)
        if ready:
            mirrors = [self._mirrors[sequences[index]] for index in ready]
            owns = [mirror.own for mirror in mirrors]
            begins = [own.num_uncomputed_tokens for own in owns]
            found = self._rounds.compute(owns, begins, longest, MIN_PATH_PROBABILITY)
            for index, mirror, draft in zip(ready, mirrors, found, strict=True):
                mirror.written = mirror.own.tokens[mirror.own.num_computed_tokens :] + draft[:-1]
                drafts[index] = draft[: ks[index]]
        return drafts

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Its tokens say so when it is asked next."""

    def forget(self, sequence: Sequence) -> None:
        """See Drafter."""
        mirror = self._mirrors.pop(sequence, None)
        if mirror is not None:
            self.kv.release(mirror.own)

    def _mirror(self, sequence: Sequence) -> _Mirror:
        """What is kept of the sequence, with what was accepted counted as computed."""
        mirror = self._mirrors.get(sequence)
        if mirror is None:
            own = Sequence(sequence.request, sequence.tokens, sequence.num_prompt_tokens)
            self.kv.attach(own, self.kv.match(own))
            mirror = self._mirrors[sequence] = _Mirror(own)
        elif mirror.written:
            own = mirror.own
            begin = own.num_computed_tokens
            kept, limit = 0, min(len(mirror.written), len(own.tokens) - 1 - begin)
            while kept < limit and mirror.written[kept] == own.tokens[begin + kept]:
                kept += 1
            self.kv.advance(own, kept)
            mirror.written = []
        return mirror

    def _catch_up(self, own: Sequence, limit: int) -> int:
        """Compute at most `limit` tokens of those before the last; how many were."""
        begin = own.num_computed_tokens
        count = self.kv.grow(own, begin + min(limit, own.num_uncomputed_tokens - 1)) - begin
        if count > 0:
            self._rounds.compute([own], [count], 0, 0.0)
            self.kv.advance(own, count)
        return max(count, 0)
