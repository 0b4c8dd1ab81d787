"""Slots of recurrent states: which chunk can begin where."""

from __future__ import annotations

import random

import pytest
import torch

from backend.config import DeltaSpec
from backend.kv.states import MAX_LOGGED, StateLayout, StateStorage

SPEC = DeltaSpec(num_key_heads=1, num_value_heads=2, key_head_dim=4, value_head_dim=8, conv_tokens=4)
LAYOUT = StateLayout((SPEC,) * 3, torch.device("cpu"))


def test_the_bytes_of_a_slot() -> None:
    layers = StateStorage(LAYOUT, 5).layers
    assert len(layers) == 3
    assert LAYOUT.slot_bytes * 5 == sum(tensor.nbytes for layer in layers for tensor in layer)


def test_any_sequence_of_steps() -> None:
    """Against the positions that each slot can go on from, by a model of three lines."""
    rng, states = random.Random(1), StateStorage(LAYOUT, 4)
    ready: list[set[int]] = [set() for _ in range(4)]
    for _ in range(500):
        slots = rng.sample(range(4), rng.randint(1, 4))
        starts = [rng.choice([0, *ready[slot]]) for slot in slots]
        counts = [rng.choice([1, 2, MAX_LOGGED, MAX_LOGGED + 1, 50]) for _ in slots]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        chunks = states.begin(slots, counts, ends)
        for slot, start in zip(slots, starts, strict=True):
            assert states.is_ready(slot, start) == (start == 0), "its step has not ended"
        if rng.random() < 0.1:  # the step failed
            for slot in slots:
                ready[slot] = set()
            continue
        states.end(chunks)
        for slot, start, count, end in zip(slots, starts, counts, ends, strict=True):
            ready[slot] = set(range(start, end + 1)) if count <= MAX_LOGGED else {end}
        for slot, own in enumerate(ready):
            assert [p for p in range(1, 400) if states.is_ready(slot, p)] == sorted(own - {0})[:399]


def test_a_chunk_that_cannot_begin() -> None:
    states = StateStorage(LAYOUT, 2)
    states.end(states.begin([1], [20], [20]))
    with pytest.raises(AssertionError):
        states.begin([1], [1], [20])
    with pytest.raises(AssertionError):
        states.begin([0], [1], [21])


def test_a_copy_goes_on_by_itself() -> None:
    states = StateStorage(LAYOUT, 3)
    states.end(states.begin([0], [20], [20]))
    states.layers[2].recurrent[0] = 5
    states.copy(0, 2, 20)
    with pytest.raises(AssertionError, match="no state at 21"):
        states.copy(0, 2, 21)
    states.end(states.begin([0], [20], [40]))
    assert states.is_ready(2, 20) and not states.is_ready(0, 20) and not states.is_ready(1, 20)
    assert (states.layers[2].recurrent[2] == 5).all() and not states.layers[2].recurrent[1].any()
