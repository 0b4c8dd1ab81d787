"""Measuring the process's allocations."""

from __future__ import annotations

import gc

from backend.structured.heap import allocated_bytes


def test_an_allocation_is_counted_while_it_lives() -> None:
    gc.collect()
    before = allocated_bytes()
    held = bytearray(10_000_000)
    with_held = allocated_bytes()
    del held
    assert with_held - before >= 9_000_000
    assert allocated_bytes() - before < 1_000_000
