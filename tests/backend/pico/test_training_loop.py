"""The loop around a run of one small matrix: steps, segments of data, checkpoints, learning rates."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from backend.pico import checkpoint
from backend.pico.batches import CPU, Batch, Encoded
from backend.pico.training_loop import FINAL_LR_SHARE, TrainingRun, log_progress, train, train_step, warmed_up


@dataclass(slots=True, kw_only=True)
class MatrixRun(TrainingRun):
    """Learns which token follows which."""

    matrix: nn.Embedding
    events: list[str] = field(default_factory=list)
    largest_norm: float = float("inf")

    @property
    def trained(self) -> nn.Module:
        return self.matrix

    def training_batch(self, step: int) -> list[Encoded]:
        self.events.append(f"data {step}")
        return [([step % 3, 1, 2], [False, True, True]), ([2, step % 2], [False, True])]

    def before_step(self) -> None:
        self.events.append(f"before {self.step}")

    def data_end(self) -> int:
        self.events.append(f"end {self.step}")
        return (self.step // 2 + 1) * 2

    def loss(self, batch: Batch, learnt_tokens: int) -> tuple[Tensor, Tensor]:
        logits = self.matrix(batch.ids.flatten()[batch.predict_from])
        loss = nn.functional.cross_entropy(logits, batch.targets, reduction="sum")
        return loss / learnt_tokens, loss.detach()

    def lr_factor(self) -> float:
        return warmed_up(self.step, 1, 1 - self.step / self.steps)

    def clip_gradients(self) -> None:
        nn.utils.clip_grad_norm_(self.matrix.parameters(), self.largest_norm)

    def state(self) -> dict[str, Any]:
        return {"matrix": self.matrix.state_dict(), "optimizers": checkpoint.states_of(self.optimizers)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.matrix.load_state_dict(state["matrix"])
        checkpoint.restore(self.optimizers, state["optimizers"])


def run_in(folder: Path, **fields: Any) -> MatrixRun:  # noqa: ANN401
    matrix = nn.Embedding(3, 3)
    nn.init.zeros_(matrix.weight)
    optimizers = [torch.optim.SGD(matrix.parameters(), lr=0.5, momentum=0.9)]
    tokenizer = Tokenizer(models.WordLevel({}, "?"))
    return MatrixRun(
        folder=folder,
        seed=0,
        tokenizer=tokenizer,
        optimizers=optimizers,
        device=CPU,
        matrix=matrix,
        **fields,
    )


def test_data_are_made_up_to_their_end_and_after_what_is_due_before_the_step(tmp_path: Path) -> None:
    run = run_in(tmp_path, steps=3)
    assert len(list(train(run, 10))) == 3 and run.step == 3 and run.tokens == 15
    first = ["before 0", "end 0", "data 0", "before 1", "data 1"]
    assert run.events == [*first, "before 2", "end 2", "data 2"]


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    whole = list(train(run_in(tmp_path, steps=6), 100))
    killed = run_in(tmp_path / "killed", steps=6)
    killed.folder.mkdir()
    first = list(islice(train(killed, 2), 5))  # one step past the checkpoint
    resumed = run_in(killed.folder, steps=6)
    assert resumed.load() and resumed.step == 4 and resumed.tokens == 4 * 5 and resumed.busy_s > 0
    assert first[:4] + list(train(resumed, 2)) == whole
    assert whole[-1] < whole[0]
    ended = run_in(killed.folder, steps=6)
    assert ended.load() and ended.step == 6 and not list(train(ended, 2))


def test_a_checkpoint_without_tokens_can_be_read(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert not run.load()
    checkpoint.write(tmp_path, run.state() | {"step": 3, "busy_s": 1.5})
    assert run.load() and (run.step, run.tokens, run.busy_s) == (3, 0, 1.5)


def test_a_step_scales_learning_rates_after_clipping(tmp_path: Path) -> None:
    run = run_in(tmp_path, largest_norm=0.1)
    assert train_step(run, run.training_batch(0), 0.25) == pytest.approx(torch.tensor(3.0).log().item())
    assert run.matrix.weight.detach().norm() == pytest.approx(0.1 * 0.5 * 0.25, rel=1e-3)
    assert run.matrix.weight.grad is None


def test_losses_are_logged_as_their_mean(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_in(tmp_path)

    def losses() -> Any:  # noqa: ANN401
        for loss in (1.0, 3.0, 5.0, 7.0, 9.0):
            run.step += 1
            yield loss

    with caplog.at_level(logging.INFO, "backend.pico.training_loop"):
        log_progress(run, losses(), 2)
    assert [record.message.split(" tokens")[0] for record in caplog.records] == [
        "step 2 loss 2.0000",
        "step 4 loss 6.0000",
    ]


def test_rates_warm_up_and_never_fall_below_the_final_one() -> None:
    assert [warmed_up(step, 4, 2.0) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert warmed_up(9, 4, 0.5) == 0.5 and warmed_up(9, 4, 0.0) == FINAL_LR_SHARE
