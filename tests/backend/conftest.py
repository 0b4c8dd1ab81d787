from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

import pytest

from tests.backend.kernels.triton_process import triton_process


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Executor]:
    """Another process, in which every op that has a kernel in Triton runs it, in Triton's interpreter."""
    with triton_process(TRITON_INTERPRET="1") as process:
        yield process
