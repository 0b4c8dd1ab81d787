"""An engine with every kind of row: its tokens and what its sampler reads."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.engine.runner_protocol import StepResult
from backend.models.loaded import load_model
from backend.types import Draft, DraftTree, Request, SamplingParams
from tests.backend.kernels.waits import Waits
from tests.backend.models.driver import random_tokens

NUM_TOKENS = 4
RANDOM: dict[str, Any] = {"temperature": 0.8, "seed": 5}
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
ROWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "drafted": {"temperature": 0.0, "logprobs": 1, **PENALTIES},
    "filtered": {**RANDOM, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "logprobs": 0},
    "penalised": {**RANDOM, "top_p": 0.7, "logit_bias": {3: 4.0, 7: -9.0}, **PENALTIES},
    "banned": {**RANDOM, "min_tokens": 3, "stop_token_ids": [*range(0, 190, 2)], "ignore_eos": True},
    "masked": {**RANDOM, "min_tokens": 3, "stop_token_ids": [0, 4], "top_k": 3, "logprobs": 3},
}


class EveryFourth:
    """A grammar that allows each token whose id is a multiple of four."""

    error = ""
    is_over = False

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        row[:] = 0x11111111

    def fill_masks(self, rows: NDArray[np.int32], drafts: Draft) -> None:
        rows[:] = 0x11111111

    def advance(self, token_id: int) -> None:
        assert token_id % 4 == 0

    def rollback(self, num_tokens: int) -> None:
        """Keeps nothing."""

    def filter_drafts(self, token_ids: list[int]) -> int:
        return 0

    def allowed_nodes(self, tree: DraftTree) -> list[int]:
        return []

    def forced_tokens(self) -> list[int]:
        return []


class CountingRunner(ModelRunner):
    """Notes what the host reads while it samples, by step, and how many draws the step has."""

    reads: list[dict[str, int]]
    draws: list[int]

    def _draw(self, launched: Any) -> None:  # noqa: ANN401
        with Waits() as waits:
            super()._draw(launched)
        self.reads.append(dict(waits.reads))
        self.draws.append(len(launched.prepared.rows))

    def _read(self, launched: Any) -> StepResult:  # noqa: ANN401
        with Waits() as waits:
            result = super()._read(launched)
        self.reads[-1] = dict(Counter(self.reads[-1]) + waits.reads)
        return result


def play(checkpoint: str, guess: list[int], is_ahead: bool = False) -> dict[str, Any]:
    """All rows together, to the end; one row gets the tokens of `guess` as drafts."""
    config = EngineConfig(
        model="m",
        checkpoint=checkpoint,
        device="cpu",
        dtype="float32",
        num_pages=32,
        speculative=SpeculativeConfig(adaptive=False),
    )
    model = load_model(config)
    facts = runner_facts(config, model)
    runner = CountingRunner(
        model, model.new_kv_storage(facts.num_pages), facts, config.max_running, is_ahead=is_ahead
    )
    runner.reads, runner.draws = [], []
    engine = Engine(config, runner)
    for name, params in ROWS.items():
        prompt = random_tokens(5, seed=1)
        sampling = SamplingParams(max_tokens=NUM_TOKENS, **params)
        own = guess if name == "drafted" else []
        engine.add(
            Request(request_id=name, prompt_token_ids=prompt, params=sampling, prediction_token_ids=own)
        )
        if name == "masked":
            engine._active[name].sequence.grammar = EveryFourth()
    tokens: dict[str, list[int]] = {name: [] for name in ROWS}
    ranks: dict[str, list[list[int]]] = {name: [] for name in ROWS}
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
            scored = [[each.rank, *(token for token, _ in each.top)] for each in output.logprobs or []]
            ranks[output.request_id] += scored
    return {"tokens": tokens, "ranks": ranks, "reads": runner.reads, "draws": runner.draws}
