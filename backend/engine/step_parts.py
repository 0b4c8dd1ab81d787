"""A step in parts, for which a device has memory where it has none for the whole."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container

from backend.types import ScheduledChunk, Sequence

logger = logging.getLogger(__name__)

RAISE_AFTER = 64
"""Steps that must fit before the limit is doubled."""


class TokenLimit:
    """The most tokens computed at once: halved where memory is short, doubled when it has lasted a while."""

    def __init__(self) -> None:
        self.max_tokens: int | None = None  # None: no limit is known to be needed
        self._ceiling = 0  # the tokens of the first step that did not fit
        self._num_steps = 0  # that fitted since the last change

    def begin_step(self) -> None:
        """Another step: the limit rises after some that fitted, and ends where it was first needed."""
        if self.max_tokens is None:
            return
        self._num_steps += 1
        if self._num_steps > RAISE_AFTER:
            self._num_steps = 0
            self.max_tokens *= 2
            if self.max_tokens >= self._ceiling:
                self.max_tokens = None
                logger.info("steps have no limit of tokens again")

    def lower(self, num_tokens: int) -> None:
        """A step with that number of tokens did not fit."""
        if self.max_tokens is None:
            self._ceiling = num_tokens
        self.max_tokens, self._num_steps = max(1, num_tokens // 2), 0
        logger.warning(
            "the device has no memory for a step of %d tokens: it computes at most %d at once for now; "
            "lower max_batch_tokens, max_running or gpu_memory if this happens often",
            *(num_tokens, self.max_tokens),
        )


def take_part(
    waiting: deque[ScheduledChunk], max_tokens: int, failed: Container[Sequence]
) -> list[ScheduledChunk]:
    """Take chunks of at most `max_tokens` tokens together, the last one cut if need be.

    Drafts that are longer are left out; so are the chunks of sequences that have failed.
    """
    part: list[ScheduledChunk] = []
    left = max_tokens
    while waiting and left:
        chunk = waiting.popleft()
        if chunk.sequence in failed:
            continue
        if chunk.draft and chunk.num_tokens > max_tokens:
            chunk = ScheduledChunk(chunk.sequence, chunk.start, chunk.num_tokens - len(chunk.draft))
        if chunk.num_tokens > left and (chunk.draft or part):
            waiting.appendleft(chunk)
            break
        if chunk.num_tokens > left:
            waiting.appendleft(ScheduledChunk(chunk.sequence, chunk.start + left, chunk.num_tokens - left))
            chunk = ScheduledChunk(chunk.sequence, chunk.start, left)
        part.append(chunk)
        left -= chunk.num_tokens
    return part


def joined(
    pieces: list[ScheduledChunk], is_sound: list[bool], failed: Container[Sequence]
) -> tuple[list[ScheduledChunk], list[bool]]:
    """The chunks that were computed in pieces, and whether all pieces of each are sound."""
    chunks: dict[Sequence, ScheduledChunk] = {}
    sound: dict[Sequence, bool] = {}
    for piece, ok in zip(pieces, is_sound, strict=True):
        sequence = piece.sequence
        if sequence in failed:
            continue
        start = chunks[sequence].start if sequence in chunks else piece.start
        chunks[sequence] = ScheduledChunk(sequence, start, piece.end - start, piece.draft, piece.parents)
        sound[sequence] = sound.get(sequence, True) and ok
    return list(chunks.values()), list(sound.values())
