"""Masks of many grammars at once: on several cores, where there are cores to spare."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence

from llguidance import LLExecutor

from backend.structured.grammar import Grammar, Mask

_MAX_THREADS = 4

_MANY = 8
"""Fewer masks are filled before threads have woken up."""

_LONG_S = 0.005
"""When all masks together take longer, those that are at fault must be found."""


@functools.cache
def executor() -> LLExecutor | None:
    """The threads of this process; None where they would take turns with the model's and the gateway's."""
    has_affinity = hasattr(os, "sched_getaffinity")
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    num_threads = min(_MAX_THREADS, num_cores - 1)
    return LLExecutor(num_threads) if num_threads > 1 else None


def fill_masks(grammars: Sequence[tuple[int, Grammar]], masks: Mask, threads: LLExecutor | None) -> None:
    """Fill rows of `masks` [R, W], each with what its grammar allows next; pairs of (row, grammar).

    The processor's time is counted only in this thread: grammars that may be slow are kept here.
    """
    together = [(row, grammar) for row, grammar in grammars if not (grammar.error or grammar.is_slow)]
    if threads is None or len(together) < _MANY:
        together = []
    elif _fill_together(together, masks, threads) > _LONG_S:
        for _, grammar in together:
            grammar.is_slow = True  # until its next mask tells
    filled = {row for row, grammar in together if not grammar.matcher.is_error()}
    for row, grammar in grammars:
        if row not in filled:
            grammar.fill_mask(masks[row])  # which mends it, if that can be


def _fill_together(grammars: Sequence[tuple[int, Grammar]], masks: Mask, threads: LLExecutor) -> float:
    """Returns the seconds that went by."""
    num_rows, num_words = masks.shape
    assert masks.flags.c_contiguous
    started_s = time.perf_counter()
    threads.unsafe_compute_mask_ptr(
        [(grammar.matcher, row) for row, grammar in grammars], masks.ctypes.data, 4 * num_words, num_rows
    )
    return time.perf_counter() - started_s
