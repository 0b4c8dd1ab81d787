"""Tiny random targets with few tokens, so that untrained drafters are right at times; and their engines."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.models.loaded import LoadedModel, load_model
from backend.speculative.loading import LoadedDrafters, load_drafters
from backend.types import Request, SamplingParams
from tests.backend.speculative.recording import RecordingDrafter

VOCAB = 11
NEW_TOKENS = 20
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

MOE = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}


def set_min_path_probability(monkeypatch: pytest.MonkeyPatch, probability: float) -> None:
    """Where chains of drafters with weights end."""
    for module in ("rollout", "device_chains"):
        monkeypatch.setattr(f"backend.speculative.{module}.MIN_PATH_PROBABILITY", probability)


def draft_in(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How drafters with weights are computed: "compiled" on a CPU, "torch" if large, "ahead" on a GPU."""
    if way == "torch":
        monkeypatch.setattr("backend.speculative.rollout.MAX_COMPILED_ELEMENTS", 0)
    elif way == "ahead":
        ahead = functools.partialmethod(LoadedDrafters.open, is_ahead=True)
        monkeypatch.setattr(LoadedDrafters, "open", ahead)


def write_model(
    folder: Path, kind: str = "qwen3_moe", seed: int = 1, *, is_rounded: bool = True, **changes: object
) -> PreTrainedModel:
    """A checkpoint in `folder`, and transformers' model of it; norms are not all ones.

    Rounded weights are such as bfloat16 holds: Numba then compiles the loops of roll-outs and experts once,
    for all tests and the embedded models.
    """
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **(SHAPE | (MOE if kind == "qwen3_moe" else {}) | changes))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
            if is_rounded:
                parameter.copy_(parameter.bfloat16())
    model.save_pretrained(folder)
    return model


def load(folder: Path) -> LoadedModel:
    return load_model(EngineConfig(model="t", checkpoint=str(folder), device="cpu", dtype="float32"))


def new_engine(
    model: LoadedModel,
    name: str = "none",
    folder: Path | None = None,
    k: int = 4,
    tree_nodes: int = 0,
    is_late: bool = False,
    **changes: object,
) -> tuple[Engine, RecordingDrafter | None]:
    """An engine, and its drafter when it has one; `is_late`: whose drafts are read with the step."""
    folders = {name: str(folder)} if folder is not None else {}
    speculative = SpeculativeConfig(
        drafter=name, max_tokens=k, tree_nodes=tree_nodes, adaptive=False, folders=folders
    )
    values = {"max_running": 8, "max_batch_tokens": 256, "num_pages": 128, "speculative": speculative}
    config = EngineConfig(
        model="t",
        checkpoint=model.config.checkpoint,
        device="cpu",
        dtype="float32",
        **(values | changes),  # type: ignore[arg-type]
    )
    facts = runner_facts(config, model)
    storage = model.new_kv_storage(facts.num_pages)
    runner = ModelRunner(model, storage, facts, config.max_running)
    opened = load_drafters(config, model).open(storage, late=runner.late if is_late else None)
    runner.observers += opened.observers
    drafters = [RecordingDrafter(each) for each in opened.drafters]
    return Engine(config, runner, drafters=drafters), next(iter(drafters), None)


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    shared = [rng.randrange(VOCAB) for _ in range(50)]
    return [shared, shared[:48] + [7] * 5, [3], [rng.randrange(VOCAB) for _ in range(23)]]


def requests(**params: object) -> list[Request]:
    values = {"temperature": 0.0, "max_tokens": NEW_TOKENS} | params
    return [
        Request(
            request_id=str(i),
            prompt_token_ids=prompt,
            params=SamplingParams(**(values | {"seed": i})),  # type: ignore[arg-type]
        )
        for i, prompt in enumerate(prompts())
    ]
