"""Train an adapter: `python -m backend.pico.adapters.train --name json --run-dir DIR --steps N`.

A killed run resumes from its last checkpoint and equals an uninterrupted one: the data of a step depends on
(seed, step) only.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from backend.classifiers.training_files import run
from backend.pico import training_loop
from backend.pico.adapters.behaviours import transform
from backend.pico.adapters.specs import SPECS, TAUGHT_FAMILIES, Spec
from backend.pico.adapters.weights import WEIGHTS, adapt, load_base
from backend.pico.batches import CPU, Batch, Encoded, forward
from backend.pico.curriculum import EXTRA_TURN_SHARE, conversation
from backend.pico.placement import GPU_WORKERS_HELP, add_device_argument, positive
from backend.pico.tasks import FAMILIES, Instance, Split
from backend.pico.tokenizer import encode_training
from backend.pico.training_loop import TrainingRun, log_progress, warmed_up

if TYPE_CHECKING:
    from peft import PeftModel

    from backend.pico.conversations import Conversation
    from backend.pico.model import Model

LOG = logging.getLogger("backend.pico.adapters.train")
CONVERSATIONS_PER_STEP = 48
PEAK_LR, WARMUP_STEPS = 0.004, 20
CLIP_NORM = 1.0
LOG_EVERY, CHECKPOINT_EVERY = 20, 20


@dataclass(slots=True, kw_only=True)
class Run(TrainingRun):
    """The state of an adapter's run."""

    spec: Spec
    base: Model  # with the adapter's layers in it
    adapted: PeftModel

    @property
    def trained(self) -> nn.Module:
        """The base with the adapter, whose matrices alone change."""
        return self.adapted

    def matrices(self) -> dict[str, nn.Parameter]:
        """The adapter's matrices."""
        return {name: p for name, p in self.adapted.named_parameters() if p.requires_grad}

    def training_batch(self, step: int) -> list[Encoded]:
        """Return the encoded conversations of a step, a function of seed and step."""
        rng = Random(f"adapter:{self.seed}:{step}")
        conversations: list[Conversation] = []
        for _ in range(CONVERSATIONS_PER_STEP):
            instances = [draw(rng, self.spec, "train")]
            while rng.random() < EXTRA_TURN_SHARE:
                instances.insert(0, draw(rng, self.spec, "train"))
            conversations.append(conversation(rng, instances, thinking=rng.choice(self.spec.thinking)))
        return [encode_training(self.tokenizer, **found) for found in conversations]

    def loss(self, batch: Batch, learnt_tokens: int) -> tuple[Tensor, Tensor]:
        """Cross entropy."""
        loss = nn.functional.cross_entropy(forward(self.base, batch), batch.targets, reduction="sum")
        return loss / learnt_tokens, loss.detach().double()

    def lr_factor(self) -> float:
        """Warm-up and linear decay."""
        return lr_factor_at(self.step, self.steps)

    def clip_gradients(self) -> None:
        """Bound the gradients' norm."""
        nn.utils.clip_grad_norm_(self.matrices().values(), CLIP_NORM)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of matrices and optimizer."""
        return {
            "adapter": {name: p.data for name, p in self.matrices().items()},
            "optimizer": self.optimizers[0].state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for name, parameter in self.matrices().items():
            parameter.data.copy_(state["adapter"][name])
        self.optimizers[0].load_state_dict(state["optimizer"])


def open_run(folder: Path, name: str, base: Path, seed: int, device: torch.device = CPU) -> Run:
    """Open the run in the folder, or start a new one."""
    spec = SPECS[name]
    model, tokenizer = load_base(base)
    adapted = adapt(model, spec, seed).to(device)
    matrices = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(matrices, lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.0)
    run = Run(
        folder=folder,
        spec=spec,
        seed=seed,
        tokenizer=tokenizer,
        base=model,
        adapted=adapted,
        optimizers=[optimizer],
        device=device,
    )
    run.load()
    return run


def draw(rng: Random, spec: Spec, split: Split) -> Instance:
    """Draw an instance with the adapter's answer."""
    weights = [spec.behaviour.family_weights.get(name, 1.0) for name in TAUGHT_FAMILIES]
    family = FAMILIES[rng.choices(TAUGHT_FAMILIES, weights)[0]]
    tier = rng.choices(list(spec.tiers), list(spec.tiers.values()))[0]
    return transform(spec.behaviour, family.generate_in(rng, tier, split))


def lr_factor_at(step: int, steps: int) -> float:
    """Return the factor of the peak learning rate at a step: warm-up and linear decay."""
    return warmed_up(step, WARMUP_STEPS, 1.0 - step / steps)


def train(run: Run, steps: int) -> None:
    """Train up to `steps`."""
    run.steps = steps
    log_progress(run, training_loop.train(run, CHECKPOINT_EVERY), LOG_EVERY)
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
