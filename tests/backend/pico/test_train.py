"""A resumed run equals an uninterrupted one; the schedule and the optimizers work as documented."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor

from backend.pico import parallel, train
from backend.pico.curriculum import Cell
from backend.pico.export import WEIGHTS
from backend.pico.model import SHAPES
from backend.pico.optim import orthogonalise
from backend.pico.train import lr_factor_at, open_run
from backend.pico.training_loop import FINAL_LR_SHARE, train_step

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
TINY_SHAPES = {
    "pico-small": {**SHAPES["pico-small"], **TINY, "intermediate_size": 32},
    "pico-large": {**SHAPES["pico-large"], **TINY, "moe_intermediate_size": 24, "num_experts": 4},
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in TINY_SHAPES.items():
        monkeypatch.setitem(SHAPES, name, shape)
    batches = dict.fromkeys(TINY_SHAPES, 6)
    for name, value in (
        ("CONVERSATIONS_PER_STEP", batches),
        ("VALIDATION_PER_CELL", 1),
        ("VALIDATE_EVERY", 2),
    ):
        monkeypatch.setattr(train, name, value)
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 2)


def new_folder(path: Path) -> Path:
    path.mkdir()
    Tokenizer.from_file(str(WEIGHTS / "pico-small" / "tokenizer.json")).save(str(path / "tokenizer.json"))
    return path


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TINY_SHAPES)
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole = open_run(new_folder(tmp_path / "whole"), name, 7)
    train.train(whole, steps=4, decay_steps=2)

    folder = new_folder(tmp_path / "resumed")
    killed = open_run(folder, name, 7)
    train.train(killed, steps=2, decay_steps=0)
    resumed = open_run(folder, name, 7)
    assert resumed.step == 2
    assert resumed.mix.accuracy == killed.mix.accuracy
    train.train(resumed, steps=4, decay_steps=2)

    assert resumed.tokens == whole.tokens
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], tensor)


@pytest.mark.usefixtures("tiny")
def test_prefetched_data_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def validate(run: train.Run) -> dict[Cell, float]:
        """Different cells are mastered each time, so that the mix changes."""
        return {cell: float(hash_of(cell) % 2 == run.step // 2 % 2) for cell in run.mix.cells()}

    def hash_of(cell: Cell) -> int:
        return len(cell.family) + cell.tier

    monkeypatch.setattr(train, "validate", validate)
    runs = []
    for workers in (0, 2):
        run = open_run(new_folder(tmp_path / str(workers)), "pico-small", 7)
        run.data_workers = workers
        train.train(run, steps=5, decay_steps=2)
        runs.append(run)
    alone, helped = runs
    assert helped.mix.accuracy == alone.mix.accuracy
    assert helped.tokens == alone.tokens
    for name, tensor in alone.model.state_dict().items():
        torch.testing.assert_close(helped.model.state_dict()[name], tensor)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("name", "hyper"), [("pico-small", False), ("pico-large", False), ("pico-large", True)]
)
def test_every_tensor_is_made_on_the_run_s_device(name: str, hyper: bool, tmp_path: Path) -> None:
    run = open_run(new_folder(tmp_path / "run"), name, 7, hyper=hyper)
    with torch.device("meta"):  # tensors created without a device would fail in operations
        train.train(run, steps=1, decay_steps=1)
    assert run.step == 1


def one_without_numbers(original: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    return lambda tensor: True if tensor.is_meta else original(tensor)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TINY_SHAPES)
def test_a_step_happens_on_the_run_s_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked in ("item", "__bool__"):  # not defined for tensors on meta
        monkeypatch.setattr(torch.Tensor, asked, one_without_numbers(getattr(torch.Tensor, asked)))
    run = open_run(new_folder(tmp_path / "run"), name, 7, device=torch.device("meta"))
    assert train_step(run, run.training_batch(0), 0.3) > 0  # meta tensors have shapes only
    assert all(parameter.is_meta for parameter in run.model.parameters())
    moments = [state["momentum"] for state in run.optimizers[0].state.values()]
    assert moments and all(moment.is_meta for moment in moments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TINY_SHAPES)
def test_a_gpu_learns_the_same(name: str, tmp_path: Path) -> None:
    losses = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        run = open_run(new_folder(tmp_path / device.type), name, 7, device=device)
        batches = [run.training_batch(step) for step in range(4)]
        losses.append([train_step(run, encoded, 0.3) for encoded in batches])
        run.save()
        assert open_run(run.folder, name, 7).step == run.step  # resumes without a GPU
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_schedule_file_overrides_the_options(tmp_path: Path) -> None:
    assert train.read_schedule(tmp_path, 100, 10) == (100, 10)
    (tmp_path / "schedule.json").write_text('{"steps": 80, "decay_steps": 20}')
    assert train.read_schedule(tmp_path, 100, 10) == (80, 20)


def test_schedule_warms_up_stays_and_decays() -> None:
    shares = [lr_factor_at(step, 1000, 200) for step in range(1000)]
    assert shares[0] < 0.05
    assert all(share == 1 for share in shares[train.WARMUP_STEPS : 800])
    assert shares[800:] == sorted(shares[800:], reverse=True)
    assert shares[-1] == FINAL_LR_SHARE


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 20), (1, 20, 8)])
def test_orthogonalise_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices, iterations=8))
    assert values.min() > 0.5
    assert values.max() < 1.4


def test_the_rendezvous_file_is_in_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        dist, "init_process_group", lambda _backend, init_method, **_: asked.append(init_method)
    )
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.chdir(tmp_path)
    parallel.join(0, 2, Path("../run"))
    assert asked == [f"file://{tmp_path.parent}/run/rendezvous"]


def test_work_is_partitioned_and_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [5, 1, 4, 2, 2]
    assert sorted(parallel.partition(costs)) == [0, 1, 2, 3, 4]
    parts = []
    for rank in (0, 1):
        monkeypatch.setattr(parallel, "rank_and_workers", lambda rank=rank: (rank, 2))
        parts.append(parallel.partition(costs))
    assert sorted(parts[0] + parts[1]) == [0, 1, 2, 3, 4]
    assert {sum(costs[index] for index in part) for part in parts} == {7}
