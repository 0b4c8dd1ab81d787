"""Checkpoints with latent attention: what is read of them, also where it is quantised, and what is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.config import EngineConfig, QuantizeConfig
from backend.errors import AdapterError, CheckpointError
from backend.kernels.experts import FusedExperts
from backend.layers.step_input import step_of_tables
from backend.models.loaded import LoadedModel, load_model
from tests.backend.engine.driving import texts
from tests.backend.lora import making
from tests.backend.models import quantized as formats
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens

BY_NAME = {variant.name: variant for variant in VARIANTS}
LAYER = "model.layers.0.self_attn."
ADAPTED = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")


def load(folder: Path, scheme: str | None = None) -> LoadedModel:
    rounding = None if scheme is None else QuantizeConfig(scheme=scheme)
    return load_model(EngineConfig(model="m", checkpoint=str(folder), device="cpu", quantize=rounding))


def logits(model: LoadedModel) -> Tensor:
    return Driver(model).step([(Track(random_tokens(40, seed=1)), 40)])[0]


def change(folder: Path, **changes: Tensor | None) -> None:
    """Put tensors of the first layer into the checkpoint, or take them out."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {LAYER + name.replace("__", "."): each for name, each in changes.items()}
    save_file({name: each for name, each in tensors.items() if each is not None}, path)


def test_a_token_takes_its_latent_and_one_rotated_key(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["deepseek-v3"], tmp_path)
    model = load(tmp_path)
    kv = model.new_kv_storage(4)
    assert [layer.shape for layer in kv.layers] == [(4, 16, 1, 1, 24 + 8)] * 3
    assert model.kv_layout.page_bytes == 3 * 16 * 32 * 4
    ends = {name.rpartition(".")[2] for name in model.sites if name.startswith(LAYER)}
    assert ends == set(ADAPTED)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite"])
def test_fp8_blocks_are_the_weights_that_they_stand_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also where a block ends within the rows of a projection's rotated part."""
    monkeypatch.setattr(FusedExperts, "fits", lambda *_: False)
    variant = BY_NAME[name]
    others = tuple(f"model.layers.{n}.self_attn.{end}" for n in range(3) for end in ("kv_a_proj_with_mqa",))
    write_checkpoint(variant, tmp_path / "plain")
    quantized, plain = formats.quantize(tmp_path / "plain", formats.FP8_BLOCKS, formats.fp8_blocks, others)
    assert torch.equal(logits(load(quantized)), logits(load(plain)))


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_rounding_at_load_leaves_the_split_projection_as_it_is(tmp_path: Path, scheme: str) -> None:
    write_checkpoint(BY_NAME["glm4-moe-lite"], tmp_path)
    exact, rounded = logits(load(tmp_path)), logits(load(tmp_path, scheme))
    limit = {"int8": 0.2, "int4": 0.8}[scheme]
    assert 0 < (rounded - exact).abs().mean() < limit * exact.std()


def test_16_bits_are_close(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["deepseek-v3"], tmp_path, torch.bfloat16)
    exact = load_model(EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu", dtype="float32"))
    narrow = load_model(EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu", dtype="bfloat16"))
    assert (logits(narrow) - logits(exact)).abs().mean() < 0.1 * logits(exact).std()


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8", "fp8"])
def test_latents_are_kept_in_fewer_bits(tmp_path: Path, kv_dtype: str) -> None:
    write_checkpoint(BY_NAME["deepseek-v3"], tmp_path)
    config = EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu", kv_dtype=kv_dtype)
    exact, rounded = logits(load(tmp_path)), logits(load_model(config))
    assert 0 < (rounded - exact).abs().mean() < 0.2 * exact.std()


def test_adapters_are_as_if_merged(tmp_path: Path) -> None:
    """Each projection, also where rows are in another order; the one that is split is refused by name."""
    config, recipe = making.checkpoint("deepseek-v3", tmp_path / "c"), making.Recipe(ends=ADAPTED, size=1.0)
    model = load_model(config)
    folder = making.write_adapter(tmp_path / "a", model, recipe)
    merged = load_model(making.write_merged(tmp_path / "c", folder, tmp_path / "m", recipe))
    store = making.make_store(model)
    asked = making.ask("x", random_tokens(40, seed=1), store.load_now("a", folder).digest, 24)
    (found,) = texts(making.make_engine(config, model, store), [asked])
    plain = making.ask("x", random_tokens(40, seed=1), max_tokens=24)
    assert [found] == texts(making.make_engine(config, merged), [plain])
    assert [found] != texts(making.make_engine(config, model, store), [plain])
    path = folder / "adapter_model.safetensors"
    more = {
        f"base_model.model.{LAYER}kv_b_proj.lora_{side}.weight": torch.ones(shape)
        for side, shape in (("A", (4, 24)), ("B", (88, 4)))
    }
    save_file(load_file(path) | more, path)
    with pytest.raises(AdapterError, match="kv_b_proj"):
        store.load_now("b", folder)
    store.close()


def test_a_node_of_a_draft_tree_sees_its_ancestors(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["deepseek-v3"], tmp_path)
    model, tokens, parents = load(tmp_path), random_tokens(30, seed=2), (-1, 0, 0, -1, 2, 4)
    driver, track = Driver(model), Track(tokens[:20])
    driver.step([(track, 20)])
    track.pages.append(driver.free.pop(0))
    table, nodes = np.array([track.pages]), torch.tensor(tokens[20:27])
    step = step_of_tables(nodes, [7], [27], table, model.device, {0: parents})
    found = model.logits(model.forward(step.token_ids, model.open(step, driver.kv)))
    for node, parent in enumerate(parents):
        path = [node]
        while parent >= 0:
            path.insert(0, parent)
            parent = parents[parent]
        track = Track([*tokens[:21], *(tokens[21 + each] for each in path)])
        plain = Driver(model).step([(track, len(track.tokens))])[0][-1]
        assert (found[1 + node] - plain).abs().max() < 1e-4


def test_layers_that_draft_are_skipped(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["deepseek-v3"], tmp_path)
    expected = logits(load(tmp_path))
    path = tmp_path / "model.safetensors"
    more = {f"model.layers.3.{name}": torch.ones(2) for name in ("eh_proj.weight", "shared_head.norm.weight")}
    save_file(load_file(path) | more, path)
    assert torch.equal(logits(load(tmp_path)), expected)
    save_file(load_file(path) | {"model.layers.4.enorm.weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"'model.layers.4.enorm.weight' is a tensor that"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"kv_b_proj__weight": None}, "has no tensor 'model.layers.0.self_attn.kv_b_proj.weight'"),
        ({"kv_b_proj__weight": torch.ones(80, 24)}, r"has shape \[80, 24\], config.json implies \[88, 24\]"),
        ({"q_a_layernorm__weight": torch.ones(24)}, r"has shape \[24\], config.json implies \[20\]"),
        ({"q_proj__weight": torch.ones(72, 64)}, "'model.layers.0.self_attn.q_proj.weight' is a tensor that"),
        ({"k_proj__weight": torch.ones(32, 64)}, "'model.layers.0.self_attn.k_proj.weight' is a tensor that"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, changes: dict[str, Tensor | None], fragment: str) -> None:
    write_checkpoint(BY_NAME["deepseek-v3"], tmp_path)
    change(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=fragment):
        load(tmp_path)
