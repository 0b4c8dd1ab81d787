"""HyperMoE gives what training gives, for adapters and whole checkpoints; broken ones are rejected."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.config import EngineConfig, MoEConfig
from backend.errors import CheckpointError
from backend.models import hyper_moe
from backend.models.hyper_moe import (
    HyperExperts,
    HyperMoEConfig,
    all_subsets,
    apply_adapters,
    binomial_table,
    subset_numbers,
)
from backend.models.loaded import LoadedModel, load_model
from backend.pico.hyper_moe import HyperNetwork, attach
from tests.backend.models.checkpoints import QWEN_MOE, Variant, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens

CONFIG = HyperMoEConfig(embedding_size=5, hidden_size=7, condition_size=6, rank=3)
QWEN3_MOE = Variant("qwen3-moe", "qwen3_moe", QWEN_MOE)
MAX_DIFFERENCE = 1e-4


def write_hyper_checkpoint(directory: Path) -> Callable[[list[int]], Tensor]:
    """Save a random model with HyperMoE; returns training's forward pass, [T] → [T, vocab]."""
    model = write_checkpoint(QWEN3_MOE, directory)
    hyper = attach(model, CONFIG)
    torch.nn.init.normal_(hyper.up.weight, std=0.3)
    model.save_pretrained(directory)

    def logits(tokens: list[int]) -> Tensor:
        with torch.no_grad():
            result: Tensor = model(torch.tensor([tokens])).logits[0]
        return result

    return logits


def load(directory: Path) -> LoadedModel:
    return load_model(EngineConfig(model="m", checkpoint=str(directory), device="cpu", dtype="float32"))


def test_equals_training_in_one_piece_and_cut(tmp_path: Path) -> None:
    expected = write_hyper_checkpoint(tmp_path)
    ours = load(tmp_path)
    tokens = random_tokens(90, seed=2)
    driver, track = Driver(ours), Track(tokens)
    parts = [driver.step([(track, count)])[0] for count in (1, 15, 40, 1, 33)]
    assert (torch.cat(parts) - expected(tokens)).abs().max().item() <= MAX_DIFFERENCE


def test_the_hyper_experts_matter(tmp_path: Path) -> None:
    """Otherwise the comparison above would pass without them."""
    expected = write_hyper_checkpoint(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors["hyper.up.weight"].zero_())
    (logits,) = Driver(load(tmp_path)).step([(Track(random_tokens(90, seed=2)), 90)])
    assert (logits - expected(random_tokens(90, seed=2))).abs().max().item() > 0.1


def test_greedy_alone_and_batched(tmp_path: Path) -> None:
    expected = write_hyper_checkpoint(tmp_path)
    ours = load(tmp_path)
    prompts = [random_tokens(length, seed=50 + length) for length in (5, 31, 64)]
    batched = Driver(ours).greedy([Track(list(prompt)) for prompt in prompts], 24)
    for prompt, continuation in zip(prompts, batched, strict=True):
        assert Driver(ours).greedy([Track(list(prompt))], 24) == [continuation]
        chosen = expected(prompt + continuation[:-1])[len(prompt) - 1 :].argmax(dim=-1)
        assert continuation == chosen.tolist()


def edit_config(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "config.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def edit_tensors(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        (lambda raw: raw.update(hyper_moe=4), ["'hyper_moe' is 4", "an object with embedding_size"]),
        (lambda raw: raw["hyper_moe"].pop("rank"), ["'hyper_moe'", "condition_size, rank"]),
        (lambda raw: raw["hyper_moe"].update(rank=0), ["'rank' is 0", "a positive whole number"]),
        (lambda raw: raw["hyper_moe"].update(rank=5), ["'hyper.down.weight'", "[192, 6]", "[320, 6]"]),
        (lambda raw: raw.pop("hyper_moe"), ["'hyper.up.weight'", "no 'hyper_moe'"]),
        (lambda raw: raw.update(num_experts_per_tok=5), ["'num_experts_per_tok' is 5", "fewer than all"]),
        (lambda raw: raw.update(architectures=["Qwen3ForCausalLM"]), ["Qwen3ForCausalLM", "no experts"]),
    ],
)
def test_wrong_config(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], fragments: list[str]
) -> None:
    write_hyper_checkpoint(tmp_path)
    edit_config(tmp_path, change)
    refuse(tmp_path, *fragments)


def test_missing_tensor(tmp_path: Path) -> None:
    write_hyper_checkpoint(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.pop("hyper.condition.weight"))
    refuse(tmp_path, "'hyper.condition.weight'", "incomplete")


def refuse(directory: Path, *fragments: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize("max_table_bytes", [hyper_moe.MAX_TABLE_BYTES, 0])
@pytest.mark.parametrize(("num_experts", "chosen_experts"), [(8, 2), (6, 3), (4, 1)])
def test_adapters_equal_training(
    monkeypatch: pytest.MonkeyPatch, num_experts: int, chosen_experts: int, max_table_bytes: int
) -> None:
    monkeypatch.setattr(hyper_moe, "MAX_TABLE_BYTES", max_table_bytes)
    torch.manual_seed(num_experts)
    trained = HyperNetwork(CONFIG, 3, num_experts, chosen_experts, hidden_size=24)
    torch.nn.init.normal_(trained.up.weight)
    weights = {name: parameter.detach() for name, parameter in trained.named_parameters()}
    network = hyper_moe.HyperNetwork(
        rank=CONFIG.rank,
        expert_embeddings=weights["expert_embeddings"],
        layer_embeddings=weights["layer_embeddings"],
        hidden=weights["hidden.weight"],
        hidden_bias=weights["hidden.bias"],
        condition=weights["condition.weight"],
        down=weights["down.weight"],
        up=weights["up.weight"],
    )
    x = torch.randn(50, 24)
    chosen = torch.stack([torch.randperm(num_experts)[:chosen_experts] for _ in range(50)])
    moe = MoEConfig(num_experts, chosen_experts, 16, normalise_top_k=True)
    layers = []
    for layer in range(3):
        experts = HyperExperts(network, layer, moe, torch.float32)
        with monkeypatch.context() as generating:
            if max_table_bytes:  # every set's adapter is in memory
                generating.delattr(hyper_moe.HyperNetwork, "generate")
            layers.append(experts(x, chosen))
        torch.testing.assert_close(layers[-1], trained(layer, x, chosen), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(experts(x[7:8], chosen[7:8])[0], layers[-1][7], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(layers[0], layers[1], atol=0.1)


def test_equals_a_loop_over_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    down, up = (torch.randn(6, *shape, generator=generator) for shape in ((8, 3), (3, 8)))
    x = torch.randn(7, 8, generator=generator)
    numbers = torch.tensor([5, 0, 3, 3, 1, 5, 0])  # neither 2 nor 4
    rows = zip(x, numbers.tolist(), strict=True)
    expected = torch.stack([torch.nn.functional.silu(token @ down[n]) @ up[n] for token, n in rows])
    torch.testing.assert_close(apply_adapters(x, numbers, down, up), expected)
    torch.testing.assert_close(apply_adapters(x[2:3], numbers[2:3], down, up)[0], expected[2])
    monkeypatch.setattr(hyper_moe, "_MAX_GATHERED_ELEMENTS", 100)  # 2 tokens at once, then the last one
    torch.testing.assert_close(apply_adapters(x, numbers, down, up), expected)


@pytest.mark.parametrize(("num_experts", "size"), [(8, 2), (6, 3), (5, 1), (4, 4)])
def test_numbers_count_up_over_all_subsets(num_experts: int, size: int) -> None:
    subsets = all_subsets(num_experts, size)
    assert len({tuple(row) for row in subsets.tolist()}) == len(subsets) == math.comb(num_experts, size)
    shuffled = subsets[:, torch.randperm(size, generator=torch.Generator().manual_seed(1))]
    numbers = subset_numbers(shuffled, binomial_table(num_experts, size))
    assert numbers.tolist() == list(range(len(subsets)))


def test_the_rest_of_the_engine_does_not_know_it() -> None:
    engine = Path(hyper_moe.__file__).parents[1]
    modules = [path for path in engine.rglob("*.py") if engine / "pico" not in path.parents]
    knowing = {path.name for path in modules if "hyper" in path.read_text(encoding="utf-8").lower()}
    assert knowing == {"hyper_moe.py", "build.py"}
