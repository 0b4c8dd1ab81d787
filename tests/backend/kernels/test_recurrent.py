"""Chunks of sequences with states: cut, rejected and run again, against one pass over what was accepted."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from backend.kernels.recurrent import State, scan_chunks

TAPS, LOG = 3, 4


def scan(seen: Tensor, before: Tensor, first: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """State: the sum of all rows; outputs: that, and the sum of the last TAPS rows."""
    replayed = start - first
    rows, sums = seen[TAPS - 1 :], seen[TAPS - 1 :].cumsum(0) + before
    windows = seen.unfold(0, TAPS, 1).sum(-1)
    at_start = sums[replayed - 1] if replayed else before
    return torch.stack((sums, windows), 1)[replayed:], at_start, sums[len(rows) - 1]


def expected(rows: Tensor, start: int) -> Tensor:
    padded = torch.cat((torch.zeros(TAPS - 1, rows.shape[1]), rows))
    return torch.stack((rows.cumsum(0), padded.unfold(0, TAPS, 1).sum(-1)), 1)[start:]


def test_any_cuts_and_rejections() -> None:
    rng, generator = random.Random(3), torch.Generator().manual_seed(1)
    state = State(torch.full((5, 2), 9.0), torch.full((5, TAPS - 1 + LOG, 2), 9.0))
    accepted = {slot: torch.zeros(0, 2) for slot in range(4)}
    logged = dict.fromkeys(accepted, 0)
    for _ in range(200):
        slots = rng.sample(range(4), rng.randint(1, 4))
        chunks, inputs = [], []
        for slot in slots:
            if rng.random() < 0.1:  # another sequence has the slot now
                accepted[slot], logged[slot] = torch.zeros(0, 2), 0
            count, kept = rng.choice([1, 2, LOG, LOG + 1, 9]), accepted[slot]
            begin = sum(map(len, inputs))
            chunks.append([slot, logged[slot], begin, count, len(kept) == 0, len(kept)])
            inputs.append(torch.randint(-9, 9, (count, 2), generator=generator).float())
        found = scan_chunks(torch.cat(inputs), state, np.array(chunks), TAPS, scan)
        for chunk, rows, output in zip(chunks, inputs, found.split([c[3] for c in chunks]), strict=True):
            slot, _, _, count, _, start = chunk
            whole = torch.cat((accepted[slot], rows))
            assert torch.equal(output, expected(whole, start))
            used = rng.randint(1, count) if count <= LOG else count
            accepted[slot], logged[slot] = whole[: start + used], used if count <= LOG else 0
    assert (state.recurrent[4] == 9).all() and (state.rows[4] == 9).all()
