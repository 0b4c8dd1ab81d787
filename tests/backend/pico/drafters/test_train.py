"""Training lowers every drafter's loss, leaves the target unchanged, and resumes exactly."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from backend.pico.drafters import train
from backend.pico.drafters.store import DRAFTERS
from backend.pico.drafters.target import Target
from backend.pico.drafters.train import WARMUP_STEPS, lr_factor_at, open_run
from backend.pico.training_loop import FINAL_LR_SHARE, train_step


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "CONVERSATIONS_PER_STEP", 2)
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 2)


@pytest.mark.parametrize("name", DRAFTERS)
def test_loss_falls(name: str, target: Target, tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = {key: tensor.clone() for key, tensor in target.model.state_dict().items()}
    run = open_run(tmp_path, name, target, tokenizer, 0)
    encoded = run.training_batch(0)
    losses = [train_step(run, encoded, 0.3) for _ in range(6)]
    assert losses[-1] < 0.98 * losses[0]
    assert all(torch.equal(tensor, before[key]) for key, tensor in target.model.state_dict().items())


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_resumed_run_equals_an_uninterrupted_one(
    name: str, target: Target, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    whole = open_run(tmp_path / "whole", name, target, tokenizer, 7)
    losses = list(train.train(whole, 4))

    killed = open_run(tmp_path / "resumed", name, target, tokenizer, 7)
    first = list(islice(train.train(killed, 4), 3))  # one step past the checkpoint
    resumed = open_run(tmp_path / "resumed", name, target, tokenizer, 7)
    assert resumed.step == 2
    assert first[:2] + list(train.train(resumed, 4)) == pytest.approx(losses)
    assert resumed.tokens == whole.tokens
    for key, tensor in whole.drafter.state_dict().items():
        torch.testing.assert_close(resumed.drafter.state_dict()[key], tensor)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_tensor_is_made_on_the_run_s_device(
    name: str, target: Target, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run = open_run(tmp_path, name, target, tokenizer, 0)
    with torch.device("meta"):  # tensors created without a device would fail in operations
        assert len(list(train.train(run, 2))) == 2


def test_schedule_warms_up_and_decays() -> None:
    shares = [lr_factor_at(step, 400) for step in range(400)]
    assert shares[0] < 0.1
    assert shares[WARMUP_STEPS:] == sorted(shares[WARMUP_STEPS:], reverse=True)
    assert shares[-1] == FINAL_LR_SHARE
