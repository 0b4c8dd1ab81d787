"""Train one: `python -m backend.pico.drafters.train --drafter NAME --target DIR --run-dir DIR --steps N`.

The target computes its distributions on the fly. A killed run resumes from its last checkpoint; the data of a
step depends on (seed, step) only, so a resumed run equals an uninterrupted one. Runs on a GPU, or on one
thread.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from backend.classifiers.training_files import run
from backend.pico import checkpoint
from backend.pico.batches import CPU, Encoded, Limits, group_by_length, make_batch
from backend.pico.curriculum import EMPHASIS, Mix, sample_conversations
from backend.pico.drafters.drafter import Drafter
from backend.pico.drafters.store import DRAFTERS, new_drafter, save_drafter
from backend.pico.drafters.target import Target, load_target
from backend.pico.optim import build_optimizers
from backend.pico.placement import GPU_WORKERS_HELP, add_device_argument, positive
from backend.pico.prefetch import prefetched
from backend.pico.tokenizer import encode_training

LOG = logging.getLogger("backend.pico.drafters.train")
MEMBER = "pico-large"  # the target, with whose mix of conversations drafters are trained
CONVERSATIONS_PER_STEP = 32
WARMUP_STEPS = 20
FINAL_LR_SHARE = 0.02
# For matrices and for the rest: the values with the lowest loss over the first 30,000 tokens.
LEARNING_RATES = {
    "draft": (0.03, 0.01),
    "medusa": (0.05, 0.003),
    "eagle": (0.02, 0.003),
    "mixture_of_attentions": (0.04, 0.003),
}
MAX_GRADIENT_NORM = 1.0
CHECKPOINT_EVERY, LOG_EVERY = 25, 10


@dataclass(slots=True)
class Run:
    """The state of a run, and its data."""

    folder: Path
    seed: int
    tokenizer: Tokenizer
    target: Target
    drafter: Drafter
    optimizers: list[torch.optim.Optimizer]
    device: torch.device
    data_workers: int = 0  # processes that prefetch data
    step: int = 0
    tokens: int = 0
    busy_s: float = 0.0

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "drafter": self.drafter.state_dict(),
            "optimizers": checkpoint.states_of(self.optimizers),
            "step": self.step,
            "tokens": self.tokens,
            "busy_s": self.busy_s,
        }
        checkpoint.write(self.folder, state)

    def load(self) -> bool:
        """Load the checkpoint; return False if there is none."""
        state = checkpoint.read(self.folder)
        if state is None:
            return False
        self.drafter.load_state_dict(state["drafter"])
        checkpoint.restore(self.optimizers, state["optimizers"])
        self.step, self.tokens, self.busy_s = state["step"], state["tokens"], state["busy_s"]
        return True


def open_run(
    folder: Path, name: str, target: Target, tokenizer: Tokenizer, seed: int, device: torch.device = CPU
) -> Run:
    """Open the run in the folder or start a new one; move the target to the device."""
    folder.mkdir(parents=True, exist_ok=True)
    drafter = new_drafter(name, target, seed).to(device)
    target.model.to(device)
    optimizers = build_optimizers(drafter, *LEARNING_RATES[name])
    run = Run(folder, seed, tokenizer, target, drafter, optimizers, device)
    if run.load():
        LOG.info("resumed at step %d", run.step)
    return run


def lr_factor_at(step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step: warm-up, then linear decay."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * max(FINAL_LR_SHARE, 1 - step / steps)


def training_batch(run: Run, step: int) -> tuple[list[Encoded], int]:
    """Return the encoded conversations of a step, and the seed of its other random choices."""
    rng = Random(f"drafter:{run.seed}:{step}")
    seed = rng.getrandbits(32)
    conversations = sample_conversations(rng, Mix(EMPHASIS[MEMBER]), CONVERSATIONS_PER_STEP)
    return [encode_training(run.tokenizer, **found) for found in conversations], seed


def train_step(run: Run, encoded: list[Encoded], seed: int, lr_factor: float) -> float:
    """Run one optimizer step; return the loss, weighted by the tokens that the model generates."""
    generator = torch.Generator(CPU).manual_seed(seed)
    written = sum(sum(learnt) for _, learnt in encoded)
    total = 0.0
    for group in group_by_length(encoded, Limits.on(run.device)):
        batch = make_batch(encoded, group).to(run.device)
        loss = run.drafter.loss(run.target, run.target.observe(batch), generator)
        share = batch.targets.numel() / written
        (share * loss).backward()  # type: ignore[no-untyped-call]
        total += share * loss.item()
    torch.nn.utils.clip_grad_norm_(run.drafter.parameters(), MAX_GRADIENT_NORM)
    for optimizer in run.optimizers:
        for parameters in optimizer.param_groups:
            parameters["lr"] = optimizer.defaults["lr"] * lr_factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    run.tokens += sum(len(ids) for ids, _ in encoded)
    return total


def train(run: Run, steps: int) -> Iterator[float]:
    """Train until `steps`, yielding each step's loss and writing checkpoints."""
    started = time.perf_counter()
    for encoded, seed in prefetched(partial(training_batch, run), range(run.step, steps), run.data_workers):
        loss = train_step(run, encoded, seed, lr_factor_at(run.step, steps))
        run.step += 1
        run.busy_s += time.perf_counter() - started
        started = time.perf_counter()
        if run.step % CHECKPOINT_EVERY == 0 or run.step == steps:
            run.save()
        yield loss


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
    losses: list[float] = []
    for loss in train(run, options.steps):
        losses.append(loss)
        if run.step % LOG_EVERY == 0:
            mean = sum(losses) / len(losses)
            LOG.info("step %d loss %.4f tokens %d minutes %.2f", run.step, mean, run.tokens, run.busy_s / 60)
            losses.clear()
    save_drafter(run.drafter, options.target, options.out or drafter_folder(options.target, options.drafter))


def drafter_folder(target: Path, name: str) -> Path:
    """Return the folder in which the family stores a drafter of the target."""
    return target.parent / "pico-draft" if name == "draft" else target / "heads" / name


if __name__ == "__main__":
    run(main)
