"""Train one: `python -m backend.pico.drafters.train --drafter NAME --target DIR --run-dir DIR --steps N`.

The target computes its distributions on the fly. A killed run resumes from its last checkpoint; the data of a
step depends on (seed, step) only, so a resumed run equals an uninterrupted one. Runs on a GPU, or on one
thread.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from backend.classifiers.training_files import run
from backend.pico import checkpoint, training_loop
from backend.pico.batches import CPU, Batch, Encoded
from backend.pico.curriculum import EMPHASIS, Mix, sample_conversations
from backend.pico.drafters.drafter import Drafter
from backend.pico.drafters.store import DRAFTERS, new_drafter, save_drafter
from backend.pico.drafters.target import Target, load_target
from backend.pico.optim import build_optimizers
from backend.pico.placement import GPU_WORKERS_HELP, add_device_argument, positive
from backend.pico.tokenizer import encode_training
from backend.pico.training_loop import TrainingRun, log_progress, warmed_up

LOG = logging.getLogger("backend.pico.drafters.train")
MEMBER = "pico-large"  # the target, with whose mix of conversations drafters are trained
CONVERSATIONS_PER_STEP = 32
WARMUP_STEPS = 20
# For matrices and for the rest: the values with the lowest loss over the first 30,000 tokens.
LEARNING_RATES = {
    "draft": (0.03, 0.01),
    "medusa": (0.05, 0.003),
    "eagle": (0.02, 0.003),
    "mixture_of_attentions": (0.04, 0.003),
}
MAX_GRADIENT_NORM = 1.0
CHECKPOINT_EVERY, LOG_EVERY = 25, 10


@dataclass(slots=True, kw_only=True)
class Run(TrainingRun):
    """The state of a drafter's run."""

    target: Target
    drafter: Drafter
    generator: torch.Generator = field(default_factory=lambda: torch.Generator(CPU))  # of a step's choices

    @property
    def trained(self) -> nn.Module:
        """The drafter."""
        return self.drafter

    def training_batch(self, step: int) -> list[Encoded]:
        """Return the encoded conversations of a step, a function of seed and step."""
        rng, _ = self._draws(step)
        conversations = sample_conversations(rng, Mix(EMPHASIS[MEMBER]), CONVERSATIONS_PER_STEP)
        return [encode_training(self.tokenizer, **found) for found in conversations]

    def groups(self, encoded: list[Encoded]) -> list[list[int]]:
        """Return the batches' indices; the step's random choices start from its seed."""
        self.generator.manual_seed(self._draws(self.step)[1])
        return TrainingRun.groups(self, encoded)

    def loss(self, batch: Batch, learnt_tokens: int) -> tuple[Tensor, Tensor]:
        """The drafter's own, weighted by the tokens that the model generates."""
        loss = self.drafter.loss(self.target, self.target.observe(batch), self.generator)
        num_targets = batch.targets.numel()
        return num_targets / learnt_tokens * loss, num_targets * loss.detach().double()

    def lr_factor(self) -> float:
        """Warm-up, then linear decay."""
        return lr_factor_at(self.step, self.steps)

    def clip_gradients(self) -> None:
        """Bound the gradients' norm."""
        nn.utils.clip_grad_norm_(self.drafter.parameters(), MAX_GRADIENT_NORM)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of drafter and optimizers."""
        return {
            "drafter": self.drafter.state_dict(),
            "optimizers": checkpoint.states_of(self.optimizers),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.drafter.load_state_dict(state["drafter"])
        checkpoint.restore(self.optimizers, state["optimizers"])

    def _draws(self, step: int) -> tuple[Random, int]:
        """Return what draws a step's conversations, and the seed of its other random choices."""
        rng = Random(f"drafter:{self.seed}:{step}")
        seed = rng.getrandbits(32)
        return rng, seed


def open_run(
    folder: Path, name: str, target: Target, tokenizer: Tokenizer, seed: int, device: torch.device = CPU
) -> Run:
    """Open the run in the folder or start a new one; move the target to the device."""
    folder.mkdir(parents=True, exist_ok=True)
    drafter = new_drafter(name, target, seed).to(device)
    target.model.to(device)
    optimizers = build_optimizers(drafter, *LEARNING_RATES[name])
    run = Run(
        folder=folder,
        seed=seed,
        tokenizer=tokenizer,
        target=target,
        drafter=drafter,
        optimizers=optimizers,
        device=device,
    )
    run.load()
    return run


def lr_factor_at(step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step: warm-up, then linear decay."""
    return warmed_up(step, WARMUP_STEPS, 1 - step / steps)


def train(run: Run, steps: int) -> Iterator[float]:
    """Train until `steps`, yielding each step's loss and writing checkpoints."""
    run.steps = steps
    return training_loop.train(run, CHECKPOINT_EVERY)


def main() -> None:
    """Train and store the drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", choices=DRAFTERS, required=True)
    parser.add_argument("--target", type=Path, required=True, help="the target in Hugging Face's layout")
    parser.add_argument("--run-dir", type=Path, required=True, help="checkpoint; outside the repository")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: TARGET/heads/NAME, for draft TARGET/../pico-draft")
    parser.add_argument("--workers", type=positive, default=1, help=f"of no use on a CPU; {GPU_WORKERS_HELP}")
    add_device_argument(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    target = load_target(options.target)
    run = open_run(options.run_dir, options.drafter, target, tokenizer, options.seed, options.device)
    run.data_workers = 0 if options.device.type == "cpu" else options.workers
    parameters = sum(parameter.numel() for parameter in run.drafter.parameters())
    LOG.info("%s: %d parameters", options.drafter, parameters)
    log_progress(run, train(run, options.steps), LOG_EVERY)
    save_drafter(run.drafter, options.target, options.out or drafter_folder(options.target, options.drafter))


def drafter_folder(target: Path, name: str) -> Path:
    """Return the folder in which the family stores a drafter of the target."""
    return target.parent / "pico-draft" if name == "draft" else target / "heads" / name


if __name__ == "__main__":
    run(main)
