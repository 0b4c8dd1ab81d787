"""A layer whose experts lie in two tensors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

import pytest

from tests.backend.kernels.experts.interpreted import CHECKS

pytestmark = pytest.mark.timeout(400)  # Triton and Numba compile, on cores that others use as well


@pytest.mark.parametrize("check", CHECKS)
def test_a_layer_has_no_wait_and_the_results_of_the_reference(
    interpreter: Executor, check: Callable[[], None]
) -> None:
    interpreter.submit(check).result()
