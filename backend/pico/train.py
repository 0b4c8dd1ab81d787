"""Train a model: `python -m backend.pico.train --model pico-small --run-dir DIR --steps N --decay-steps D`.

A killed run resumes from its last checkpoint. The data of a step depends on (seed, step) only, so a resumed
run equals an uninterrupted one. The learning rate is constant until the last `--decay-steps`; a file
DIR/schedule.json {"steps": N, "decay_steps": D} changes both while the run is in progress.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from backend.classifiers.training_files import run
from backend.models.hyper_moe import HyperMoEConfig
from backend.pico import checkpoint, recipe, training_loop
from backend.pico.batches import CPU, Batch, Encoded, Limits, are_answers_exact, forward, group_by_length
from backend.pico.curriculum import EMPHASIS, Cell, Mix, conversation, sample_conversations
from backend.pico.experts import balance_loss, replace_blocks
from backend.pico.hyper_moe import attach
from backend.pico.model import SHAPES, build_model
from backend.pico.optim import build_optimizers
from backend.pico.parallel import all_reduce, join, partition, rank_and_workers
from backend.pico.placement import GPU_WORKERS_HELP, add_device_argument, positive
from backend.pico.prefetch import prefetched
from backend.pico.tasks import FAMILIES
from backend.pico.tokenizer import encode_training, train_tokenizer
from backend.pico.training_loop import TrainingRun, log_progress, warmed_up
from backend.pico.upcycle import upcycle

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM, Qwen3MoeForCausalLM

    from backend.pico.model import Model

LOG = logging.getLogger("backend.pico.train")
WEIGHTS = Path(__file__).with_name("weights")
CONVERSATIONS_PER_STEP = {"pico-small": 128, "pico-base": 96, "pico-large": 96, "pico-draft": 96}
BALANCE_WEIGHT = 0.01
WARMUP_STEPS = 60
MATRIX_LR, OTHER_LR = 0.02, 0.003
VALIDATE_EVERY, VALIDATION_PER_CELL = 200, 24
CHECKPOINT_EVERY, LOG_EVERY, SCHEDULE_EVERY = 50, 10, 25


@dataclass(slots=True, kw_only=True)
class Run(TrainingRun):
    """The state of a model's run."""

    name: str  # of the model
    model: Model
    mix: Mix
    decay_steps: int = 0

    @property
    def trained(self) -> nn.Module:
        """The model."""
        return self.model

    def training_batch(self, step: int) -> list[Encoded]:
        """Return the encoded conversations of a step, a function of seed, step and mix."""
        rng = Random(f"{self.seed}:{step}")
        conversations = sample_conversations(rng, self.mix, CONVERSATIONS_PER_STEP[self.name])
        return [encode_training(self.tokenizer, **found) for found in conversations]

    def groups(self, encoded: list[Encoded]) -> list[list[int]]:
        """Return this process's share of the batches."""
        groups = list(group_by_length(encoded, Limits.on(self.device)))
        mine = partition([len(group) * len(encoded[group[-1]][0]) for group in groups])
        return [groups[index] for index in mine]

    def loss(self, batch: Batch, learnt_tokens: int) -> tuple[Tensor, Tensor]:
        """Cross entropy, and the balance of the experts as part of the objective."""
        loss = nn.functional.cross_entropy(forward(self.model, batch), batch.targets, reduction="sum")
        share_of_tokens = batch.targets.numel() / learnt_tokens
        balance = BALANCE_WEIGHT * share_of_tokens * balance_loss(self.model, batch.real.flatten())
        return loss / learnt_tokens + balance, loss.detach()

    def lr_factor(self) -> float:
        """Warm-up, plateau, linear decay."""
        return lr_factor_at(self.step, self.steps, self.decay_steps)

    def before_step(self) -> None:
        """Follow schedule.json; validate and adapt the mix."""
        if self.step % SCHEDULE_EVERY == 0:
            self.steps, self.decay_steps = read_schedule(self.folder, self.steps, self.decay_steps)
        if self.step % VALIDATE_EVERY == 0:
            measured = validate(self)
            self.mix.update(measured)
            log_validation(self, measured)

    def data_end(self) -> int:
        """Return the step of the next validation, which changes the mix."""
        return (self.step // VALIDATE_EVERY + 1) * VALIDATE_EVERY

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of model, optimizers and mix."""
        return {
            "model": self.model.state_dict(),
            "optimizers": checkpoint.states_of(self.optimizers),
            "accuracy": {tuple(cell): value for cell, value in self.mix.accuracy.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(state["model"])
        checkpoint.restore(self.optimizers, state["optimizers"])
        self.mix.accuracy = {Cell(*cell): value for cell, value in state["accuracy"].items()}


def open_run(
    folder: Path,
    name: str,
    seed: int,
    parent: Path | None = None,
    hyper: bool = False,
    device: torch.device = CPU,
) -> Run:
    """Open the run in the folder, or start a new one; the folder must contain tokenizer.json.

    A new run starts from the checkpoint in `parent`, if given: of the same model, or of a dense one to
    upcycle.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = build_model(name, tokenizer.get_vocab_size(), seed)
    is_sparse = "num_experts" in SHAPES[name]
    if parent is not None:
        start_from(model, parent, seed, sparse=is_sparse)
    if hyper:
        attach(model, HyperMoEConfig())
    elif is_sparse:
        replace_blocks(model)
    model.to(device)  # type: ignore[arg-type]  # its decorator hides what it takes
    optimizers = build_optimizers(model, MATRIX_LR, OTHER_LR)
    run = Run(
        folder=folder,
        name=name,
        seed=seed,
        tokenizer=tokenizer,
        model=model,
        optimizers=optimizers,
        mix=Mix(EMPHASIS[name]),
        device=device,
    )
    run.load()
    return run


def provide_vocabulary(folder: Path, seed: int, *, fresh: bool) -> None:
    """Put tokenizer.json into a new run's folder: the family's own, as all models share it, or a new one."""
    path = folder / "tokenizer.json"
    if path.exists():
        return
    if fresh:
        train_tokenizer(seed).save(str(path))
    else:
        path.write_bytes((WEIGHTS / "pico-small" / "tokenizer.json").read_bytes())


def start_from(model: Model, parent: Path, seed: int, *, sparse: bool) -> None:
    """Load the weights of another run, finished or not."""
    state = checkpoint.read(parent)
    if state is None:
        raise FileNotFoundError(f"{str(parent)!r} holds no checkpoint; give --parent the directory of a run")
    weights = state["model"]
    if sparse and not any(".experts." in name for name in weights):
        dense = build_model("pico-small", model.config.vocab_size, seed)
        dense.load_state_dict(weights)
        upcycle(cast("Qwen3ForCausalLM", dense), cast("Qwen3MoeForCausalLM", model), seed)
    else:
        model.load_state_dict(weights)


def lr_factor_at(step: int, steps: int, decay_steps: int) -> float:
    """Return the factor of the learning rate at a step: warm-up, plateau, linear decay."""
    return warmed_up(step, WARMUP_STEPS, max(0.0, steps - step) / max(1, decay_steps))


def validate(run: Run) -> dict[Cell, float]:
    """Return per cell the fraction of validation conversations that greedy decoding answers exactly."""
    cells = run.mix.cells()
    rights = torch.zeros(len(cells), device=CPU)
    mine = partition([1] * len(cells))
    draws = prefetched(partial(validation_draws, run, cells), mine, run.data_workers)
    right = are_answers_exact(run.model, [found for drawn in draws for found in drawn])
    for place, index in enumerate(mine):
        begin = place * VALIDATION_PER_CELL
        rights[index] = sum(right[begin : begin + VALIDATION_PER_CELL]) / VALIDATION_PER_CELL
    return dict(zip(cells, all_reduce(rights).tolist(), strict=True))


def validation_draws(run: Run, cells: list[Cell], index: int) -> list[Encoded]:
    """Draw and encode a cell's validation conversations for the current step."""
    name, tier, thinking = cells[index]
    rng = Random(f"validation:{run.seed}:{run.step}:{name}:{tier}")
    drawn = [FAMILIES[name].generate_in(rng, tier, "validation") for _ in range(VALIDATION_PER_CELL)]
    asked = [conversation(rng, [instance], thinking=thinking) for instance in drawn]
    return [encode_training(run.tokenizer, **found) for found in asked]


def log_validation(run: Run, measured: dict[Cell, float]) -> None:
    """Log one line per tier and mode: the mean and each family's percentage."""
    for tier, thinking in run.mix.emphasis:
        found = {cell.family: v for cell, v in measured.items() if cell[1:] == (tier, thinking)}
        cells = " ".join(f"{name[:8]}={100 * value:.0f}" for name, value in found.items())
        mode = "thinking" if thinking else "direct"
        LOG.info(
            "step %d tier %d %s %.1f | %s",
            run.step,
            tier,
            mode,
            100 * sum(found.values()) / len(found),
            cells,
        )


def read_schedule(folder: Path, steps: int, decay_steps: int) -> tuple[int, int]:
    """Return steps and decay steps from schedule.json, read by rank 0, or unchanged without that file."""
    chosen = torch.zeros(2, dtype=torch.long, device=CPU)
    if rank_and_workers()[0] == 0:
        path = folder / "schedule.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        wanted = (found.get("steps", steps), found.get("decay_steps", decay_steps))
        chosen += torch.tensor(wanted, device=CPU)
    new_steps, new_decay_steps = all_reduce(chosen).tolist()
    if (new_steps, new_decay_steps) != (steps, decay_steps):
        LOG.info("step schedule: %d steps, decay over the last %d", new_steps, new_decay_steps)
    return new_steps, new_decay_steps


def train(run: Run, steps: int, decay_steps: int) -> None:
    """Train until `steps`, validating, adapting the mix and writing checkpoints on the way."""
    run.steps, run.decay_steps = steps, decay_steps
    log_progress(run, training_loop.train(run, CHECKPOINT_EVERY), LOG_EVERY)


def work(rank: int, options: argparse.Namespace) -> None:
    """Run one process of the group; rank 0 logs and writes the checkpoints."""
    # torch sends SIGINT to the workers when their parent dies; background jobs of a shell ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s"
    )
    on_gpu = options.device.type != "cpu"
    join(rank, 1 if on_gpu else options.workers, options.run_dir)
    run = open_run(
        options.run_dir, options.model, options.seed, options.parent, options.hyper, options.device
    )
    run.data_workers = options.workers if on_gpu else 0
    if options.compile:
        run.model.model.compile(dynamic=True)
    train(run, options.steps, options.decay_steps)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run-dir", type=Path, required=True, help="tokenizer and checkpoint; outside the repository"
    )
    parser.add_argument("--all", action="store_true", help="every stage of backend.pico.recipe, in order")
    parser.add_argument("--model", choices=sorted(SHAPES))
    parser.add_argument("--parent", type=Path, help="the run directory whose weights a new run starts from")
    parser.add_argument("--new-vocabulary", action="store_true", help="train one instead of the family's")
    parser.add_argument("--hyper", action="store_true", help="with HyperMoE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--decay-steps", type=int)
    parser.add_argument(
        "--workers", type=positive, default=1, help=f"processes of one thread each; {GPU_WORKERS_HELP}"
    )
    add_device_argument(parser)
    parser.add_argument(
        "--compile", action="store_true", help="a quarter faster after some minutes of compilation"
    )
    options = parser.parse_args()
    if options.all:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        recipe.run(options.run_dir, options.workers, str(options.device))
        return
    for name in ("model", "steps", "decay_steps"):
        if getattr(options, name) is None:
            parser.error(f"--{name.replace('_', '-')} is missing; give it, or --all for the whole family")
    options.run_dir.mkdir(parents=True, exist_ok=True)
    (options.run_dir / "rendezvous").unlink(missing_ok=True)
    provide_vocabulary(options.run_dir, options.seed, fresh=options.new_vocabulary)
    if options.workers == 1 or options.device.type != "cpu":
        work(0, options)
    else:
        spawn(work, args=(options,), nprocs=options.workers)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    run(main)
