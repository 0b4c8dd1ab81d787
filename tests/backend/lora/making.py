"""Random adapters in PEFT's layout, the merged checkpoint of each, and engines that serve them."""

from __future__ import annotations

import json
import math
import shutil
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from backend.config import EngineConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel, load_model
from backend.speculative.drafter import Drafter
from backend.types import Request, SamplingParams
from tests.backend.engine.driving import texts
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Recipe:
    """What an adapter looks like; `ends` chooses its modules by how their names end, none: all."""

    rank: int = 4
    alpha: float = 8.0
    is_rank_stabilised: bool = False
    ends: tuple[str, ...] = ()
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    seed: int = 0
    size: float = 0.3

    def rank_of(self, module: str) -> int:
        return next((rank for end, rank in self.rank_pattern.items() if module.endswith(end)), self.rank)

    def scale_of(self, module: str) -> float:
        alpha = next((a for end, a in self.alpha_pattern.items() if module.endswith(end)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)

    def modules(self, model: LoadedModel) -> list[str]:
        return [name for name in model.sites if not self.ends or name.endswith(self.ends)]


def checkpoint(name: str, folder: Path) -> EngineConfig:
    """A tiny random checkpoint of one of the families."""
    write_checkpoint(next(v for v in VARIANTS if v.name == name), folder)
    return EngineConfig(model="t", checkpoint=str(folder), device="cpu", dtype="float32", num_threads=1)


def write_adapter(folder: Path, model: LoadedModel, recipe: Recipe, **config: Any) -> Path:  # noqa: ANN401
    """adapter_config.json, with changes, and adapter_model.safetensors; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for module in recipe.modules(model):
        site, rank = model.sites[module], recipe.rank_of(module)
        generator = torch.Generator().manual_seed(recipe.seed + zlib.crc32(module.encode()))
        down = torch.randn(rank, site.in_features, generator=generator) / site.in_features**0.5
        up = torch.randn(site.columns, rank, generator=generator) * recipe.size / rank**0.5
        tensors[f"base_model.model.{module}.lora_A.weight"] = down.to(recipe.dtype)
        tensors[f"base_model.model.{module}.lora_B.weight"] = up.to(recipe.dtype)
    save_file(tensors, folder / "adapter_model.safetensors")
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "t",
        "r": recipe.rank,
        "lora_alpha": recipe.alpha,
        "use_rslora": recipe.is_rank_stabilised,
        "rank_pattern": recipe.rank_pattern,
        "alpha_pattern": recipe.alpha_pattern,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in recipe.modules(model)}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(values | config))
    return folder


def write_merged(base: Path, adapter: Path, folder: Path, recipe: Recipe) -> EngineConfig:
    """The checkpoint with the adapter's products added to its weights."""
    shutil.copytree(base, folder)
    weights = load_file(folder / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    if "lm_head.weight" not in weights and any("lm_head" in name for name in tensors):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    for name, down in tensors.items():
        if ".lora_A." in name:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            up = tensors[name.replace(".lora_A.", ".lora_B.")]
            weights[f"{module}.weight"] += recipe.scale_of(module) * (up.float() @ down.float())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return EngineConfig(model="m", checkpoint=str(folder), device="cpu", dtype="float32", num_threads=1)


def make_store(model: LoadedModel, limits: AdapterLimits | None = None) -> AdapterStore:
    return AdapterStore(model.sites, limits or AdapterLimits(), model.dtype, CPU)


def make_engine(
    config: EngineConfig,
    model: LoadedModel,
    store: AdapterStore | None = None,
    drafters: Iterable[Drafter] = (),
    **changes: object,
) -> Engine:
    values = {"max_running": 16, "num_pages": 256} | changes
    config = EngineConfig(
        model="t",
        checkpoint=config.checkpoint,
        device="cpu",
        dtype="float32",
        **values,  # type: ignore[arg-type]
    )
    facts = runner_facts(config, model)
    runner = ModelRunner(
        model, model.new_kv_storage(facts.num_pages), facts, config.max_running, adapters=store
    )
    return Engine(config, runner, drafters=drafters, adapters=store)


def ask(name: str, prompt: list[int], adapter: str = "", max_tokens: int = 64, **params: object) -> Request:
    values = {"temperature": 0.0} | params
    sampling = SamplingParams(max_tokens=max_tokens, **values)  # type: ignore[arg-type]
    return Request(request_id=name, prompt_token_ids=prompt, params=sampling, adapter=adapter)


def greedy(config: EngineConfig, prompt: list[int]) -> list[int]:
    """64 tokens of a checkpoint by itself."""
    (tokens,) = texts(make_engine(config, load_model(config)), [ask("alone", prompt)])
    return tokens
