"""Load balance of a mixture of experts: `python -m backend.pico.expert_load FOLDER`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer
from torch import Tensor

from backend.classifiers.training_files import run
from backend.pico.curriculum import EMPHASIS, Mix, sample_conversations
from backend.pico.experts import routings
from backend.pico.hyper_moe import load_sparse
from backend.pico.tokenizer import encode_training

if TYPE_CHECKING:
    from transformers import Qwen3MoeForCausalLM

MEMBER = "pico-large"


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """How often each layer's router selected each expert."""

    counts: Tensor  # [layers, experts] int64
    tokens: int

    @property
    def shares(self) -> Tensor:
        """[layers, experts]: fraction of tokens per expert. A row sums to the number of experts per token."""
        return self.counts / self.tokens

    @property
    def evenness(self) -> Tensor:
        """[layers]: entropy of the selection / maximal entropy; 1 is uniform, 0 a single expert."""
        p = self.counts / self.counts.sum(dim=1, keepdim=True)
        # xlogy: an expert that is never selected contributes 0.
        entropies: Tensor = -torch.special.xlogy(p, p).sum(dim=1)
        return entropies / math.log(p.shape[1])

    def table(self) -> str:
        """Return a Markdown table: per layer the percentage of tokens per expert, and measures of balance."""
        experts = self.counts.shape[1]
        heads = [f"expert {expert + 1}" for expert in range(experts)] + ["evenness", "most/least"]
        lines = ["| layer | " + " | ".join(heads) + " |", "|---" * (experts + 3) + "|"]
        for layer, (row, evenness) in enumerate(zip(self.shares, self.evenness.tolist(), strict=True)):
            least = row.min().item()
            spread = f"{row.max().item() / least:.2f}" if least else "∞"
            cells = [*(f"{100 * share:.1f}" for share in row.tolist()), f"{evenness:.3f}", spread]
            lines.append(f"| {layer + 1} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


@torch.no_grad()
def measure_load(model: Qwen3MoeForCausalLM, sequences: Iterable[Sequence[int]]) -> ExpertLoad:
    """Count the selections over sequences of token ids, for a model of `load_sparse` or of training."""
    counts = torch.zeros(model.config.num_hidden_layers, model.config.num_experts, dtype=torch.long)
    tokens = 0
    for sequence in sequences:
        model.model(torch.tensor([sequence]), use_cache=False)
        tokens += len(sequence)
        for row, routing in zip(counts, routings(model), strict=True):
            row += torch.bincount(routing.chosen.flatten(), minlength=len(row))
    return ExpertLoad(counts, tokens)


def held_out_sequences(tokenizer: Tokenizer, count: int, seed: int) -> list[list[int]]:
    """Return conversations of the test split in the training mix, as token ids with prompts and reasoning."""
    rng = Random(f"expert load:{seed}")
    conversations = sample_conversations(rng, Mix(EMPHASIS[MEMBER]), count, "test")
    return [encode_training(tokenizer, **conversation)[0] for conversation in conversations]


def main() -> None:
    """Count, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    sequences = held_out_sequences(tokenizer, options.conversations, options.seed)
    load = measure_load(load_sparse(options.folder), sequences)
    sys.stdout.write(f"{load.table()}\n{load.tokens} tokens of {options.conversations} conversations.\n")


if __name__ == "__main__":
    run(main)
