"""Which drafts stay: those that the model draws itself.

The model draws a token after every draft, each from its own edited and filtered distribution with the number
of (seed, position) that it would use anyway. Drafts are accepted while they equal the draw; the first other
draw is the correction, and after all drafts comes one more. So the output is the one without speculation,
whatever was drafted. A draft d is accepted with probability p(d), which for a certain guess is also what
rejection sampling reaches (after Daliri, Musco and Suresh, 2024: communication-free coupling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdict:
    """What R chunks got out of N draws."""

    token_ids: list[int] = field(default_factory=list)  # [R] each chunk's last valid draw: not a draft
    accepted: dict[int, list[int]] = field(default_factory=dict)  # the drafts before it, by chunk
    first: list[int] = field(default_factory=list)  # [R] each chunk's first draw, index into N
    last: list[int] = field(default_factory=list)  # [R] its last valid one; those behind mean nothing


def num_accepted(draft: Sequence[int], drawn: Sequence[int]) -> int:
    """The length of the longest start of `draft` that equals what was drawn."""
    for index, (guess, token_id) in enumerate(zip(draft, drawn, strict=False)):
        if guess != token_id:
            return index
    return len(draft)


def verify(drafts: Sequence[Sequence[int]], drawn: Sequence[int]) -> Verdict:
    """`drafts` [R] by chunk, maybe empty; `drawn` [N] has len(draft) + 1 draws for each, in order."""
    verdict = Verdict()
    begin = 0
    for chunk, draft in enumerate(drafts):
        end = begin + len(draft)
        last = begin + num_accepted(draft, drawn[begin:end]) if draft else begin
        verdict.token_ids.append(drawn[last])
        verdict.first.append(begin)
        verdict.last.append(last)
        if last > begin:
            verdict.accepted[chunk] = list(drawn[begin:last])
        begin = end + 1
    return verdict
