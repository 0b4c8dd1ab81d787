"""Greedy tokens of a model and two adapters."""

from __future__ import annotations

from pathlib import Path

import torch

from backend.models.loaded import load_model
from tests.backend.engine.driving import texts
from tests.backend.lora.making import Recipe, ask, checkpoint, make_engine, make_store, write_adapter
from tests.backend.models.driver import random_tokens

RECIPES = {
    "all": Recipe(rank=5, seed=1, size=1.0),
    "attention": Recipe(rank=2, seed=2, size=2.0, ends=("q_proj", "v_proj", "o_proj")),
}
MAX_TOKENS = 3


@torch.inference_mode()
def tokens(folder: Path) -> dict[str, list[int]]:
    """By adapter: answers to one prompt, all in the same steps; "" is the model's own."""
    config = checkpoint("qwen3", folder / "base")
    model = load_model(config)
    store, prompt = make_store(model), random_tokens(9, seed=4)
    digests = {"": ""}
    for name, recipe in RECIPES.items():
        digests[name] = store.load_now(name, write_adapter(folder / name, model, recipe)).digest
    requests = [ask(name or "none", prompt, digest, MAX_TOKENS) for name, digest in digests.items()]
    return dict(zip(digests, texts(make_engine(config, model, store), requests), strict=True))
