"""A resumed run equals an uninterrupted one; the data have the adapter's answers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from backend.pico.adapters import train
from backend.pico.adapters.specs import SPECS
from backend.pico.adapters.weights import WEIGHTS
from backend.pico.tasks import split_of
from backend.pico.training_loop import FINAL_LR_SHARE, train_step

# PEFT reads a transformers property by its deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "CONVERSATIONS_PER_STEP", 4)
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 2)


def test_a_resumed_run_equals_an_uninterrupted_one(tiny_small: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    whole = train.open_run(folders[0], "json", tiny_small, 7)
    before = {name: p.detach().clone() for name, p in whole.matrices().items()}
    train.train(whole, steps=4)

    killed = train.open_run(folders[1], "json", tiny_small, 7)
    for step in range(3):  # the third is lost
        train_step(killed, killed.training_batch(step), train.lr_factor_at(step, 4))
        killed.step += 1
        if killed.step == 2:
            killed.save()
    resumed = train.open_run(folders[1], "json", tiny_small, 7)
    assert resumed.step == 2
    train.train(resumed, steps=4)
    for name, parameter in whole.matrices().items():
        torch.testing.assert_close(resumed.matrices()[name], parameter)
        assert not torch.equal(parameter, before[name])


def test_only_the_adapter_is_trained(tiny_small: Path, tmp_path: Path) -> None:
    run = train.open_run(tmp_path, "si", tiny_small, 0)
    frozen = {name: p.detach().clone() for name, p in run.adapted.named_parameters() if not p.requires_grad}
    train_step(run, run.training_batch(0), 2.5)
    found = dict(run.adapted.named_parameters())
    assert all(torch.equal(found[name], tensor) for name, tensor in frozen.items())
    assert all(".lora_" in name for name in run.matrices())


@pytest.mark.parametrize("name", ["si", "json-large"])
def test_every_tensor_is_made_on_the_run_s_device(name: str, tmp_path: Path) -> None:
    run = train.open_run(tmp_path, name, WEIGHTS / SPECS[name].base, 0)
    with torch.device("meta"):  # tensors created without a device would fail in operations
        train.train(run, steps=1)
    assert run.step == 1


def test_draws_follow_the_behaviour_and_the_split() -> None:
    rng = Random(0)
    for spec in SPECS.values():
        for _ in range(30):
            assert split_of(train.draw(rng, spec, "train")) == "train"
    answers = [train.draw(rng, SPECS["json"], "train").answer for _ in range(20)]
    assert all(answer.startswith('{"answer": ') for answer in answers)
    si = [train.draw(rng, SPECS["si"], "train").family for _ in range(200)]
    assert 50 < si.count("units") < 130


def test_schedule_warms_up_and_decays() -> None:
    shares = [train.lr_factor_at(step, 200) for step in range(200)]
    assert shares[0] < 0.1
    assert max(shares) > 0.85
    assert shares[30:] == sorted(shares[30:], reverse=True)
    assert shares[-1] == FINAL_LR_SHARE
