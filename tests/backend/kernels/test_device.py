"""The GPU's path through a whole model, without a GPU."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.kernels.device import uses_triton
from tests.backend.kernels.whole import tokens
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.test_hyper_moe import write_hyper_checkpoint

pytestmark = pytest.mark.timeout(400)  # Triton and Numba compile, on cores that others use as well

NAMES = ("llama-biases", "mistral-window", "qwen3", "mixtral", "qwen3-moe", "hyper-moe", "gpt-oss-clamped")


def test_a_cpu_takes_its_own_path() -> None:
    assert not uses_triton(torch.zeros(1))


@pytest.mark.parametrize("name", NAMES)
def test_interpreted_kernels_choose_the_tokens_of_the_cpu(
    interpreter: Executor, name: str, tmp_path: Path
) -> None:
    if name == "hyper-moe":
        write_hyper_checkpoint(tmp_path)
    else:
        variant = next(each for each in VARIANTS if each.name == name)
        two_layers = variant.changes | {"num_hidden_layers": 2}  # of each kind one, and one behind another
        write_checkpoint(replace(variant, changes=two_layers), tmp_path)
    assert interpreter.submit(tokens, str(tmp_path)).result() == tokens(str(tmp_path))
