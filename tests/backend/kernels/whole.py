"""A checkpoint's greedy tokens."""

from __future__ import annotations

import torch

from backend.config import EngineConfig
from backend.models.loaded import load_model
from tests.backend.models.driver import Driver, Track, random_tokens

LENGTHS = (5, 19, 3)
NUM_TOKENS = 4


@torch.inference_mode()
def tokens(checkpoint: str) -> list[list[int]]:
    """Three prompts prefilled in one step, and decoded together."""
    model = load_model(EngineConfig(model="m", checkpoint=checkpoint, device="cpu", dtype="float32"))
    tracks = [Track(random_tokens(length, seed=length)) for length in LENGTHS]
    return Driver(model).greedy(tracks, NUM_TOKENS)
