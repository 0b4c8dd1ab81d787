"""A process of its own for Triton, which reads its variables when it is imported."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import pytest


@contextmanager
def triton_process(**variables: str) -> Iterator[ProcessPoolExecutor]:
    """Runs what it is sent, one call after another, so that torch and Triton are imported once.

    What a call changes for all others it must change back.
    """
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with pool, pytest.MonkeyPatch.context() as patch:
        # Sums of products are fused as on a GPU; later versions warn that this is no longer the default.
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        for name, value in variables.items():
            patch.setenv(name, value)
        pool.submit(os.getpid).result()  # it has started, with these variables
        patch.undo()
        yield pool
