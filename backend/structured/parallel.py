"""Masks of many grammars at once: on several cores, where there are cores to spare."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from llguidance import LLExecutor

from backend.structured.grammar import Grammar, Mask

_MAX_THREADS = 4

_MANY = 8
"""Fewer masks are filled before threads have woken up."""


@functools.cache
def executor() -> LLExecutor | None:
    """The threads of this process; None where they would take turns with the model's and the gateway's."""
    has_affinity = hasattr(os, "sched_getaffinity")
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    num_threads = min(_MAX_THREADS, num_cores - 1)
    return LLExecutor(num_threads) if num_threads > 1 else None


def fill_masks(grammars: Sequence[tuple[int, Grammar]], masks: Mask, threads: LLExecutor | None) -> None:
    """Fill rows of `masks` [R, W], each with what its grammar allows next; pairs of (row, grammar)."""
    if threads is None or len(grammars) < _MANY:
        for row, grammar in grammars:
            grammar.fill_mask(masks[row])
        return
    sound = [(row, grammar) for row, grammar in grammars if not grammar.error]
    num_rows, num_words = masks.shape
    assert masks.flags.c_contiguous
    threads.unsafe_compute_mask_ptr(
        [(grammar.matcher, row) for row, grammar in sound], masks.ctypes.data, 4 * num_words, num_rows
    )
    for row, grammar in sound:
        if grammar.matcher.is_error():
            grammar.fill_mask(masks[row])  # which mends it, if that can be
    for row, grammar in grammars:
        if grammar.error:
            masks[row] = -1
