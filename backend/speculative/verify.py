"""Which drafts stay: those that the model draws itself.

The model draws a token after every draft, each from its own edited and filtered distribution with the number
of (seed, position) that it would use anyway. Drafts are accepted while they equal the draw; the first other
draw is the correction, and after all drafts comes one more. So the output is the one without speculation,
whatever was drafted. A draft d is accepted with probability p(d), which for a certain guess is also what
rejection sampling reaches (after Daliri, Musco and Suresh, 2024: communication-free coupling). In a tree the
draw chooses the next node: the child that equals it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.speculative.tree import accepted_nodes


@dataclass(slots=True)
class Verdict:
    """What R chunks got out of N draws."""

    token_ids: list[int] = field(default_factory=list)  # [R] each chunk's last valid draw: not a draft
    accepted: dict[int, list[int]] = field(default_factory=dict)  # the drafts before it, by chunk
    first: list[int] = field(default_factory=list)  # [R] each chunk's first draw, index into N
    last: list[int] = field(default_factory=list)  # [R] its last valid one; those after it mean nothing
    # Of chunks whose draft is a tree, the valid draws in order: the first, and those after accepted nodes.
    paths: dict[int, list[int]] = field(default_factory=dict)

    def draws(self, chunk: int) -> Sequence[int]:
        """A chunk's valid draws, in order of their positions."""
        return self.paths.get(chunk) or range(self.first[chunk], self.last[chunk] + 1)


def num_accepted(draft: Sequence[int], drawn: Sequence[int]) -> int:
    """The length of the longest start of `draft` that equals what was drawn."""
    pairs = enumerate(zip(draft, drawn, strict=False))
    return next((index for index, (guess, token_id) in pairs if guess != token_id), len(draft))


def verify(
    drafts: Sequence[Sequence[int]],
    drawn: Sequence[int],
    parents: Sequence[Sequence[int]] | None = None,
) -> Verdict:
    """`drafts` [R] by chunk, maybe empty; `drawn` [N] has len(draft) + 1 draws for each, in order.

    `parents` [R], of the nodes of those drafts that are trees, empty for the others; None: there are none.
    """
    verdict = Verdict()
    begin = 0
    for chunk, draft in enumerate(drafts):
        end = begin + len(draft)
        if parents is not None and parents[chunk]:
            nodes = accepted_nodes(draft, parents[chunk], drawn[begin : end + 1])
            verdict.paths[chunk] = path = [begin, *(begin + 1 + node for node in nodes)]
            last = path[-1]
        else:
            last = begin + num_accepted(draft, drawn[begin:end]) if draft else begin
        verdict.token_ids.append(drawn[last])
        verdict.first.append(begin)
        verdict.last.append(last)
        if last > begin:
            verdict.accepted[chunk] = [drawn[draw] for draw in verdict.draws(chunk)[:-1]]
        begin = end + 1
    return verdict


def detours(verdict: Verdict, token_index: Sequence[int]) -> tuple[list[int], list[int]]:
    """Which of a step's tokens are accepted nodes of trees that other nodes precede, and where each belongs.

    `token_index` [N] says which token each draw follows. Both are indices into the step's tokens.
    """
    sources: list[int] = []
    targets: list[int] = []
    for path in verdict.paths.values():
        for target, draw in enumerate(path, start=path[0]):
            if draw != target:
                sources.append(token_index[draw])
                targets.append(token_index[target])
    return sources, targets
