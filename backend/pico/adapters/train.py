"""Train an adapter: `python -m backend.pico.adapters.train --name json --run-dir DIR --steps N`.

A killed run resumes from its last checkpoint and equals an uninterrupted one: the data of a step depends on
(seed, step) only.
"""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer

from backend.classifiers.training_files import run
from backend.pico import checkpoint
from backend.pico.adapters.behaviours import transform
from backend.pico.adapters.specs import SPECS, TAUGHT_FAMILIES, Spec
from backend.pico.adapters.weights import WEIGHTS, adapt, load_base
from backend.pico.batches import CPU, Encoded, Limits, forward, group_by_length, make_batch
from backend.pico.curriculum import EXTRA_TURN_SHARE, conversation
from backend.pico.placement import GPU_WORKERS_HELP, add_device_argument, positive
from backend.pico.prefetch import prefetched
from backend.pico.tasks import FAMILIES, Instance, Split
from backend.pico.tokenizer import encode_training

if TYPE_CHECKING:
    from peft import PeftModel

    from backend.pico.conversations import Conversation
    from backend.pico.model import Model

LOG = logging.getLogger("backend.pico.adapters.train")
CONVERSATIONS_PER_STEP = 48
PEAK_LR, WARMUP_STEPS, FINAL_LR_SHARE = 0.004, 20, 0.02
CLIP_NORM = 1.0
LOG_EVERY, CHECKPOINT_EVERY = 20, 20


@dataclass(slots=True)
class Run:
    """The state of a run, and its directory."""

    folder: Path
    spec: Spec
    seed: int
    tokenizer: Tokenizer
    base: Model  # with the adapter's layers in it
    adapted: PeftModel
    optimizer: torch.optim.Optimizer
    device: torch.device
    data_workers: int = 0  # processes that prefetch data
    step: int = 0
    busy_s: float = 0.0

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The adapter's matrices."""
        return {name: p for name, p in self.adapted.named_parameters() if p.requires_grad}

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "adapter": {name: p.data for name, p in self.trained().items()},
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "busy_s": self.busy_s,
        }
        checkpoint.write(self.folder, state)

    def load(self) -> bool:
        """Load the checkpoint; return False if there is none."""
        state = checkpoint.read(self.folder)
        if state is None:
            return False
        for name, parameter in self.trained().items():
            parameter.data.copy_(state["adapter"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.busy_s = state["step"], state["busy_s"]
        return True


def open_run(folder: Path, name: str, base: Path, seed: int, device: torch.device = CPU) -> Run:
    """Open the run in the folder, or start a new one."""
    spec = SPECS[name]
    model, tokenizer = load_base(base)
    adapted = adapt(model, spec, seed).to(device)
    matrices = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(matrices, lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.0)
    run = Run(folder, spec, seed, tokenizer, model, adapted, optimizer, device)
    if run.load():
        LOG.info("resumed at step %d", run.step)
    return run


def draw(rng: Random, spec: Spec, split: Split) -> Instance:
    """Draw an instance with the adapter's answer."""
    weights = [spec.behaviour.family_weights.get(name, 1.0) for name in TAUGHT_FAMILIES]
    family = FAMILIES[rng.choices(TAUGHT_FAMILIES, weights)[0]]
    tier = rng.choices(list(spec.tiers), list(spec.tiers.values()))[0]
    return transform(spec.behaviour, family.generate_in(rng, tier, split))


def training_batch(run: Run, step: int) -> list[Encoded]:
    """Return the encoded conversations of a step, a function of seed and step."""
    rng = Random(f"adapter:{run.seed}:{step}")
    conversations: list[Conversation] = []
    for _ in range(CONVERSATIONS_PER_STEP):
        instances = [draw(rng, run.spec, "train")]
        while rng.random() < EXTRA_TURN_SHARE:
            instances.insert(0, draw(rng, run.spec, "train"))
        conversations.append(conversation(rng, instances, thinking=rng.choice(run.spec.thinking)))
    return [encode_training(run.tokenizer, **found) for found in conversations]


def lr_factor_at(step: int, steps: int) -> float:
    """Return the factor of the peak learning rate at a step: warm-up and linear decay."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * max(FINAL_LR_SHARE, 1.0 - step / steps)


def train_step(run: Run, encoded: list[Encoded], lr: float) -> float:
    """Run one optimizer step; return the mean loss per target token."""
    learnt_tokens = sum(sum(learnt) for _, learnt in encoded)
    total = 0.0
    for indices in group_by_length(encoded, Limits.on(run.device)):
        batch = make_batch(encoded, indices).to(run.device)
        loss = torch.nn.functional.cross_entropy(forward(run.base, batch), batch.targets, reduction="sum")
        (loss / learnt_tokens).backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(run.trained().values(), CLIP_NORM)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    return total / learnt_tokens


def train(run: Run, steps: int) -> None:
    """Train up to `steps`."""
    losses = []
    started = time.perf_counter()
    for encoded in prefetched(partial(training_batch, run), range(run.step, steps), run.data_workers):
        losses.append(train_step(run, encoded, PEAK_LR * lr_factor_at(run.step, steps)))
        run.step += 1
        if run.step % LOG_EVERY == 0:
            LOG.info("step %d loss %.4f", run.step, sum(losses) / len(losses))
            losses.clear()
        if run.step % CHECKPOINT_EVERY == 0 or run.step == steps:
            run.busy_s += time.perf_counter() - started
            started = time.perf_counter()
            run.save()
    LOG.info("%s: step %d after %.0f s", run.spec.name, run.step, run.busy_s)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", choices=sorted(SPECS), required=True)
    parser.add_argument("--base", type=Path, help="folder of the base's weights; default: this package's")
    parser.add_argument("--run-dir", type=Path, required=True, help="outside the repository")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=positive, default=1, help=f"of no use on a CPU; {GPU_WORKERS_HELP}")
    add_device_argument(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    options.run_dir.mkdir(parents=True, exist_ok=True)
    base = options.base or WEIGHTS / SPECS[options.name].base
    run = open_run(options.run_dir, options.name, base, options.seed, options.device)
    run.data_workers = 0 if options.device.type == "cpu" else options.workers
    train(run, options.steps)


if __name__ == "__main__":
    run(main)
