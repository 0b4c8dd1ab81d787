"""Triton's draws are those of the sampler in torch."""

from __future__ import annotations

import json

from tests.backend.kernels.test_launch import run


def test_the_interpreter_draws_the_tokens_of_the_cpu() -> None:
    """All kinds of rows: cases.py has those with unsound ones, and agreement.py says what may differ."""
    found = json.loads(run("sampling.agreement", "30", TRITON_INTERPRET="1"))
    assert found["rows"] == 30 and found["sound"] >= 25
    assert found["near"] == found["differ"] <= 1
