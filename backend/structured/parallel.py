"""Computes the masks of many grammars in parallel where the machine has spare cores."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence

from llguidance import LLExecutor

from backend.structured.grammar import Grammar, Mask

_MAX_THREADS = 4

_MIN_PARALLEL_MASKS = 8
"""Fewer masks are computed before threads have woken up."""

_SLOW_BATCH_S = 0.005
"""If a parallel batch takes longer, its grammars are timed one by one to find the slow ones."""


@functools.cache
def executor() -> LLExecutor | None:
    """Return the process's thread pool; None if it would compete with the model and the gateway for cores."""
    has_affinity = hasattr(os, "sched_getaffinity")
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    num_threads = min(_MAX_THREADS, num_cores - 1)
    return LLExecutor(num_threads) if num_threads > 1 else None


def fill_masks(grammars: Sequence[tuple[int, Grammar]], masks: Mask, threads: LLExecutor | None) -> None:
    """Fill row r of `masks` [R, W] for each pair (r, grammar) with the tokens that the grammar allows next.

    CPU budgets only measure the calling thread, so grammars marked slow are computed here, not in the pool.
    """
    parallel = [(row, grammar) for row, grammar in grammars if not (grammar.error or grammar.is_slow)]
    if threads is None or len(parallel) < _MIN_PARALLEL_MASKS:
        parallel = []
    elif _fill_parallel(parallel, masks, threads) > _SLOW_BATCH_S:
        for _, grammar in parallel:
            grammar.is_slow = True  # until its next mask is timed
    filled = {row for row, grammar in parallel if not grammar.matcher.is_error()}
    for row, grammar in grammars:
        if row not in filled:
            grammar.fill_mask(masks[row])  # recovers from a matcher error if possible


def _fill_parallel(grammars: Sequence[tuple[int, Grammar]], masks: Mask, threads: LLExecutor) -> float:
    """Return the elapsed seconds."""
    num_rows, num_words = masks.shape
    assert masks.flags.c_contiguous
    started_s = time.perf_counter()
    threads.unsafe_compute_mask_ptr(
        [(grammar.matcher, row) for row, grammar in grammars], masks.ctypes.data, 4 * num_words, num_rows
    )
    elapsed_s = time.perf_counter() - started_s
    for _, grammar in grammars:
        grammar.count_use(elapsed_s * _MAX_THREADS / len(grammars))
    return elapsed_s
