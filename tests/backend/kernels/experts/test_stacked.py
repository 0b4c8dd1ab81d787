"""A layer whose experts lie in two tensors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(400)  # Triton and Numba compile, on cores that others use as well


def test_a_layer_has_no_wait_and_the_results_of_the_reference() -> None:
    """In a process of its own, where Triton interprets its kernels."""
    command = [sys.executable, "-m", "tests.backend.kernels.experts.interpreted"]
    variables = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
