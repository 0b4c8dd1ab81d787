"""Triton's draws are those of the sampler in torch."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

import pytest

from tests.backend.kernels.sampling.agreement import agreement
from tests.backend.kernels.sampling.whole import play
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

pytestmark = pytest.mark.timeout(400)  # Triton and Numba compile, on cores that others use as well


def test_the_interpreter_draws_the_tokens_of_the_cpu(interpreter: Executor) -> None:
    """All kinds of rows: cases.py has those with unsound ones, and agreement.py says what may differ."""
    found = interpreter.submit(agreement, 30).result()
    assert found["rows"] == 30 and found["sound"] >= 25
    assert found["near"] == found["differ"] <= 1


def test_an_engine_samples_as_on_a_cpu_and_reads_once_a_step(interpreter: Executor, tmp_path: Path) -> None:
    """Filters, log-probabilities, penalties, biases, bans, drafts and a grammar, in one batch."""
    write_checkpoint(next(each for each in VARIANTS if each.name == "llama-biases"), tmp_path)
    plain = play(str(tmp_path), [])
    guess = plain["tokens"]["drafted"].copy()
    guess[2] += 1
    expected = play(str(tmp_path), guess)
    assert max(expected["draws"]) > min(expected["draws"]), "drafts are verified"
    for drafts, is_ahead, want in ((guess, False, expected), ([], True, plain)):
        found = interpreter.submit(play, str(tmp_path), drafts, is_ahead).result()
        # One download, and one block of the host's memory that is filled to be uploaded.
        assert all(reads == {"tolist": 1, "numpy": 1} for reads in found.pop("reads"))
        assert (found["tokens"], found["ranks"]) == (want["tokens"], want["ranks"])
