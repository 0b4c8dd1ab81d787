"""The training loop that models, adapters and drafters share: data, optimizer steps, checkpoints, progress.

A killed run resumes from its last checkpoint and equals an uninterrupted one, as the data of a step depend on
its number and the seed only.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from backend.pico import checkpoint
from backend.pico.batches import Batch, Encoded, Limits, group_by_length, make_batch
from backend.pico.parallel import all_reduce, all_reduce_gradients, rank_and_workers
from backend.pico.prefetch import prefetched

LOG = logging.getLogger("backend.pico.training_loop")
FINAL_LR_SHARE = 0.02


@dataclass(slots=True, kw_only=True)
class TrainingRun(ABC):
    """The state of a run, and its directory."""

    folder: Path
    seed: int
    tokenizer: Tokenizer
    optimizers: list[torch.optim.Optimizer]
    device: torch.device
    data_workers: int = 0  # processes that prefetch data
    steps: int = 0  # to train in all
    step: int = 0
    tokens: int = 0
    busy_s: float = 0.0

    @property
    @abstractmethod
    def trained(self) -> nn.Module:
        """The module whose parameters change."""

    @abstractmethod
    def training_batch(self, step: int) -> list[Encoded]:
        """Return the encoded conversations of a step, a function of seed and step."""

    @abstractmethod
    def loss(self, batch: Batch, learnt_tokens: int) -> tuple[Tensor, Tensor]:
        """Return what a batch adds to the step's objective, and the sum of its targets' losses, detached."""

    @abstractmethod
    def lr_factor(self) -> float:
        """Return the factor of the learning rates at this step."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of weights and optimizers."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""

    def before_step(self) -> None:  # noqa: B027 - most runs have nothing to do
        """Do what is due before a step."""

    def data_end(self) -> int:
        """Return the step up to which data can be prefetched."""
        return self.steps

    def groups(self, encoded: list[Encoded]) -> list[list[int]]:
        """Return the indices of this process's batches."""
        return list(group_by_length(encoded, Limits.on(self.device)))

    def clip_gradients(self) -> None:  # noqa: B027 - not every run clips
        """Bound the gradients before the optimizers' step."""

    def save(self) -> None:
        """Write the checkpoint."""
        progress = {"step": self.step, "tokens": self.tokens, "busy_s": self.busy_s}
        checkpoint.write(self.folder, self.state() | progress)

    def load(self) -> bool:
        """Load the checkpoint; return False if there is none."""
        state = checkpoint.read(self.folder)
        if state is None:
            return False
        self.restore(state)
        self.step, self.busy_s = state["step"], state["busy_s"]
        self.tokens = state.get("tokens", 0)
        LOG.info("resumed at step %d", self.step)
        return True


def warmed_up(step: int, warmup_steps: int, share: float) -> float:
    """Return the factor of a learning rate: warm-up, then `share` of it, never below the final one."""
    return min(1.0, (step + 1) / warmup_steps) * max(FINAL_LR_SHARE, min(1.0, share))


def train_step(run: TrainingRun, encoded: list[Encoded], lr_factor: float) -> float:
    """Run one optimizer step; return the mean loss per target token."""
    learnt_tokens = sum(sum(learnt) for _, learnt in encoded)
    total = torch.zeros((), device=run.device)
    for indices in run.groups(encoded):
        objective, loss = run.loss(make_batch(encoded, indices).to(run.device), learnt_tokens)
        objective.backward()  # type: ignore[no-untyped-call]
        total = total + loss
    all_reduce_gradients(run.trained)
    run.clip_gradients()
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = optimizer.defaults["lr"] * lr_factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    run.tokens += sum(len(ids) for ids, _ in encoded)
    return float(all_reduce(total).item()) / learnt_tokens


def train(run: TrainingRun, checkpoint_every: int) -> Iterator[float]:
    """Train until the run's last step, yielding each step's loss and writing checkpoints."""
    batches: Iterator[list[Encoded]] = iter(())
    started = time.perf_counter()
    while run.step < run.steps:
        run.before_step()
        encoded = next(batches, None)
        if encoded is None:
            coming = range(run.step, min(run.steps, run.data_end()))
            batches = prefetched(run.training_batch, coming, run.data_workers)
            encoded = next(batches)
        loss = train_step(run, encoded, run.lr_factor())
        run.step += 1
        run.busy_s += time.perf_counter() - started
        started = time.perf_counter()
        if (run.step % checkpoint_every == 0 or run.step == run.steps) and rank_and_workers()[0] == 0:
            run.save()
        yield loss


def log_progress(run: TrainingRun, losses: Iterable[float], log_every: int) -> None:
    """Read the losses of all steps, and log their mean from time to time."""
    recent: list[float] = []
    for loss in losses:
        recent.append(loss)
        if run.step % log_every == 0:
            mean = sum(recent) / len(recent)
            LOG.info("step %d loss %.4f tokens %d hours %.3f", run.step, mean, run.tokens, run.busy_s / 3600)
            recent.clear()
