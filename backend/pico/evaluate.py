"""Accuracy per family and tier on the test split, by greedy decoding: `python -m backend.pico.evaluate`.

The weights are read as stored (rounded to bf16) and computed in fp32; each family's grader judges.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer

from backend.pico.curriculum import Cell
from backend.pico.export import WEIGHTS
from backend.pico.tasks import FAMILIES, Family, Instance, Split
from backend.pico.tokenizer import END_OF_TEXT, TURN_END, render, special_id

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

LOG = logging.getLogger("backend.pico.evaluate")
MAX_NEW_TOKENS = 72
BATCH_ROWS = 64
DRAWS_PER_INSTANCE = 40  # a small tier may hold fewer distinct questions than asked for


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome on one cell; `failures` are (instance, text) pairs."""

    asked: int
    failures: list[tuple[Instance, str]]

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return 1.0 - len(self.failures) / self.asked


def draw_instances(family: Family, tier: int, count: int, split: Split, seed: int) -> list[Instance]:
    """Up to `count` instances with distinct prompts; the same seed gives the same ones."""
    rng = Random(f"evaluation:{seed}:{family.name}:{tier}")
    found: dict[str, Instance] = {}
    for _ in range(count * DRAWS_PER_INSTANCE):
        instance = family.generate_in(rng, tier, split)
        found.setdefault(instance.prompt, instance)
        if len(found) == count:
            break
    return list(found.values())


@torch.no_grad()
def answer(model: Qwen3ForCausalLM, tokenizer: Tokenizer, prompts: Sequence[str]) -> list[str]:
    """Greedy answers to single-turn prompts, in order."""
    end, pad = special_id(tokenizer, TURN_END), special_id(tokenizer, END_OF_TEXT)
    texts = [render([{"role": "user", "content": prompt}], add_generation_prompt=True) for prompt in prompts]
    encoded = [tokenizer.encode(text).ids for text in texts]
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    answers = [""] * len(prompts)
    for start in range(0, len(order), BATCH_ROWS):
        indices = order[start : start + BATCH_ROWS]
        width = max(len(encoded[index]) for index in indices)
        ids = torch.full((len(indices), width), pad, dtype=torch.long)
        for row, index in enumerate(indices):
            ids[row, width - len(encoded[index]) :] = torch.tensor(encoded[index])
        mask = torch.tensor(
            [[int(place >= width - len(encoded[i])) for place in range(width)] for i in indices]
        )
        output = model.generate(  # type: ignore[misc]
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=pad,
        )
        for row, index in enumerate(indices):
            answers[index] = tokenizer.decode(output[row, width:].tolist(), skip_special_tokens=True)
    return answers


def evaluate(
    model: Qwen3ForCausalLM, tokenizer: Tokenizer, count: int, split: Split, seed: int
) -> dict[Cell, Score]:
    """Scores of all cells."""
    scores: dict[Cell, Score] = {}
    for name, family in FAMILIES.items():
        for tier in family.tiers:
            instances = draw_instances(family, tier, count, split, seed)
            texts = answer(model, tokenizer, [instance.prompt for instance in instances])
            pairs = zip(instances, texts, strict=True)
            failures = [(instance, text) for instance, text in pairs if not family.grade(instance, text)]
            scores[name, tier] = Score(len(instances), failures)
            LOG.info(
                "%s tier %d: %.1f %% of %d", name, tier, 100 * scores[name, tier].accuracy, len(instances)
            )
            for instance, text in failures[:3]:
                LOG.debug("  %r expected %r got %r", instance.prompt, instance.answer, text)
    return scores


def table(scores: dict[Cell, Score]) -> str:
    """The accuracies as a Markdown table: percent, and the number of instances in brackets."""
    tiers = sorted({tier for _, tier in scores})
    lines = [
        "| family | " + " | ".join(f"tier {tier}" for tier in tiers) + " |",
        "|---" * (len(tiers) + 1) + "|",
    ]
    for name in FAMILIES:
        found = [scores.get((name, tier)) for tier in tiers]
        cells = [f"{100 * score.accuracy:.1f} ({score.asked})" if score else "" for score in found]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    means = []
    for tier in tiers:
        values = [score.accuracy for (_, of), score in scores.items() if of == tier]
        means.append(f"**{100 * sum(values) / len(values):.1f}**")
    lines.append("| **mean** | " + " | ".join(means) + " |")
    return "\n".join(lines) + "\n"


def load(folder: Path) -> tuple[Qwen3ForCausalLM, Tokenizer]:
    """The stored weights as fp32, and their tokenizer."""
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    """Read the options, evaluate and write the table to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS / "pico-small")
    parser.add_argument("--count", type=int, default=200, help="instances per family and tier")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--failures", action="store_true", help="show some wrong answers")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    LOG.setLevel(logging.DEBUG if options.failures else logging.INFO)
    torch.set_num_threads(options.threads)
    model, tokenizer = load(options.weights)
    sys.stdout.write(table(evaluate(model, tokenizer, options.count, options.split, options.seed)))


if __name__ == "__main__":
    main()
