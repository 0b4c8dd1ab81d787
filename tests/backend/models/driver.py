"""Runs a LoadedModel the way an engine does: scattered pages, chunks, mixed batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from backend.layers.step_input import step_of_tables
from backend.models.loaded import LoadedModel
from backend.types import PAGE_TOKENS

NUM_STATES = 8


@dataclass
class Track:
    """One sequence: its tokens, how many are in KV memory, and its pages."""

    tokens: list[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    state: int = -1  # the slot of its recurrent state


class Driver:
    """Owns KV memory; hands out pages in a random order."""

    def __init__(self, model: LoadedModel, num_pages: int = 128, seed: int | None = 0) -> None:
        self.model = model
        self.kv = model.new_kv_storage(num_pages, NUM_STATES)
        self.num_states = 0
        self.free = list(range(1, num_pages))
        if seed is not None:
            random.Random(seed).shuffle(self.free)

    def step(self, work: Sequence[tuple[Track, int]]) -> list[Tensor]:
        """Compute `count` further tokens of each track; returns the logits of each track's new tokens."""
        token_ids = []
        for track, count in work:
            end = track.computed + count
            if track.state < 0:
                track.state, self.num_states = self.num_states, self.num_states + 1
            while len(track.pages) * PAGE_TOKENS < end:
                track.pages.append(self.free.pop(0))
            token_ids += track.tokens[track.computed : end]
            track.computed = end
        width = max(len(track.pages) for track, _ in work)
        counts, ends = [count for _, count in work], [track.computed for track, _ in work]
        table = np.array([track.pages + [0] * (width - len(track.pages)) for track, _ in work])
        step = step_of_tables(torch.tensor(token_ids), counts, ends, table, self.model.device)
        step = replace(step, states=[track.state for track, _ in work])
        hidden = self.model.forward(step.token_ids, self.model.open(step, self.kv))
        logits = self.model.logits(hidden)
        return list(logits.split(counts))

    def fork(self, track: Track, tokens: list[int]) -> Track:
        """A sequence of `tokens` that goes on where `track` is, on its full pages."""
        state, self.num_states = self.num_states, self.num_states + 1
        if self.kv.states is not None:
            self.kv.states.copy(track.state, state, track.computed)
        return Track(tokens, track.computed, track.pages[: track.computed // PAGE_TOKENS], state)

    def greedy(self, tracks: Sequence[Track], num_tokens: int) -> list[list[int]]:
        """Prefill what is missing, then decode all tracks together; returns the new tokens of each."""
        begins = [len(track.tokens) for track in tracks]
        for _ in range(num_tokens):
            work = [(track, len(track.tokens) - track.computed) for track in tracks]
            work.sort(key=lambda pair: pair[1])
            for (track, _), logits in zip(work, self.step(work), strict=True):
                track.tokens.append(int(logits[-1].argmax()))
        return [track.tokens[begin:] for track, begin in zip(tracks, begins, strict=True)]


def random_tokens(count: int, seed: int, vocab_size: int = 199) -> list[int]:
    """Token ids that depend on the seed only."""
    generator = random.Random(seed)
    return [generator.randrange(vocab_size) for _ in range(count)]
