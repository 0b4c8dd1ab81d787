"""Which questions `pico-small` and `pico-large` answer right: `python -m backend.pico.outcomes --out FILE`.

One JSON object per line, as `penstock router train --data` reads them: the request's last user turn, the
task, each model's score (0 or 1), price and answer tokens, and whether a cascade would keep it rightly.
`pico-large` reasons, as it does when it is served.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from backend.classifiers.training_files import run
from backend.pico.conversations import messages_of
from backend.pico.curriculum import ROUGH_SHARE, roughen
from backend.pico.decoder import Completion, Decoder, answer_in, prompt_of
from backend.pico.evaluate import draw_instances
from backend.pico.recipe import WEIGHTS
from backend.pico.tasks import FAMILIES, Instance, Split

MODELS = {"pico-small": False, "pico-large": True}
"""Name → whether it reasons."""

KEPT_FROM = 0.75
"""Least probability of a token in a right answer that counts as kept; the default policies ask for less."""

USD_PER_MILLION = {"pico-small": (0.019, 0.076), "pico-large": (0.023, 0.091)}
"""Notional prices of input and output tokens, those of the default policies."""


def questions(count: int, split: Split, seed: int) -> list[Instance]:
    """Up to `count` distinct questions of each family and tier; some as hastily typed."""
    rng = Random(f"outcomes:{seed}")
    found = [
        instance
        for family in FAMILIES.values()
        for tier in sorted(family.tiers)
        for instance in draw_instances(family, tier, count, split, seed)
    ]
    rng.shuffle(found)
    return found


def outcomes(asked: Sequence[Instance], threads: int, seed: int) -> Iterator[dict[str, Any]]:
    """Ask every model every question; yields a row for each question."""
    rng = Random(f"outcomes:{seed}:typing")
    conversations = [messages_of(instance, thinking=False) for instance in asked]
    for instance, conversation in zip(asked, conversations, strict=True):
        if len(conversation["messages"]) == 2 and rng.random() < ROUGH_SHARE:
            conversation["messages"][0]["content"] = roughen(rng, instance.prompt)
    rows: list[dict[str, Any]] = [
        {
            "prompt": _last_user_turn(conversation["messages"]),
            "has_tools": conversation["tools"] is not None,
            "task": f"{instance.family}-{instance.tier}",
            "scores": {},
            "cost_usd": {},
            "answer_tokens": {},
            "kept": {},
            "source": "pico",
        }
        for instance, conversation in zip(asked, conversations, strict=True)
    ]
    for model, thinking in MODELS.items():
        decoder = Decoder(WEIGHTS / model, threads=threads)
        completions = decoder.answer(conversations, thinking=thinking)
        for row, instance, conversation, found in zip(rows, asked, conversations, completions, strict=True):
            is_right = FAMILIES[instance.family].grade(instance, answer_in(found.text, thinking=thinking))
            row["scores"][model] = float(is_right)
            prompt = decoder.tokenizer.encode(prompt_of(conversation, thinking=thinking))
            row["cost_usd"][model] = _cost(model, len(prompt.ids), found)
            row["answer_tokens"][model] = len(found.token_ids)
            row["kept"][model] = float(is_right and math.exp(found.lowest_logprob) >= KEPT_FROM)
    yield from rows


def _last_user_turn(messages: Sequence[dict[str, Any]]) -> str:
    return next(str(message["content"]) for message in reversed(messages) if message["role"] == "user")


def _cost(model: str, prompt_tokens: int, found: Completion) -> float:
    price_in, price_out = USD_PER_MILLION[model]
    return round((price_in * prompt_tokens + price_out * len(found.token_ids)) / 1e6, 12)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=40, help="questions per family and tier")
    parser.add_argument("--split", choices=("train", "validation", "test"), default="validation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    asked = questions(options.count, options.split, options.seed)
    with options.out.open("w", encoding="utf-8") as file:
        for row in outcomes(asked, options.threads, options.seed):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    run(main)
