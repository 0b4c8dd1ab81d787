"""Loading: shards, progress, and what "auto" makes of a 16-bit checkpoint."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import DtypeName, EngineConfig
from backend.errors import CheckpointError
from backend.models.loaded import LoadedModel, load_model
from tests.backend.models.checkpoints import MIXED_MOE, QWEN_MOE, VARIANTS, Variant, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens

BY_NAME = {variant.name: variant for variant in VARIANTS}


def load(directory: Path, dtype: DtypeName = "float32") -> LoadedModel:
    return load_model(EngineConfig(model="m", checkpoint=str(directory), device="cpu", dtype=dtype))


def logits(model: LoadedModel) -> torch.Tensor:
    tokens = random_tokens(40, seed=1)
    driver, track = Driver(model), Track(tokens)
    return torch.cat([driver.step([(track, count)])[0] for count in (30, 1, 9)])


def test_shards_give_the_same_model(tmp_path: Path) -> None:
    for name, size in (("one", "1GB"), ("many", "100KB")):
        write_checkpoint(BY_NAME["mixtral"], tmp_path / name, max_shard_size=size)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert torch.equal(logits(load(tmp_path / "one")), logits(load(tmp_path / "many")))


def test_a_layer_that_drafts_is_not_read(tmp_path: Path) -> None:
    """GLM-4.5 has one behind the last; a second one is no part of it."""
    write_checkpoint(BY_NAME["glm4-moe"], tmp_path)
    expected = logits(load(tmp_path))
    path = tmp_path / "model.safetensors"
    number = load(tmp_path).config.num_layers
    extra = {f"model.layers.{number}.eh_proj.weight": torch.ones(64, 128)}
    save_file(load_file(path) | extra, path)
    assert torch.equal(logits(load(tmp_path)), expected)
    extra = {f"model.layers.{number + 1}.eh_proj.weight": torch.ones(64, 128)}
    save_file(load_file(path) | extra, path)
    with pytest.raises(CheckpointError, match="eh_proj"):
        load(tmp_path)


def test_keys_that_a_layer_does_not_use_are_not_read(tmp_path: Path) -> None:
    """Gemma 4's last layers read those of others, and published files hold their own as well."""
    write_checkpoint(BY_NAME["gemma4"], tmp_path)
    model = load(tmp_path)
    path = tmp_path / "model.safetensors"
    sources = [layer.attention.kv_source for layer in model.config.layers]
    shared, own = sources.index(next(each for each in sources if each is not None)), sources.index(None)
    keys = {f"model.layers.{shared}.self_attn.{name}.weight": torch.ones(2) for name in ("k_proj", "k_norm")}
    save_file(load_file(path) | keys, path)
    assert torch.equal(logits(load(tmp_path)), logits(model))
    save_file(load_file(path) | {f"model.layers.{own}.self_attn.k_extra.weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match="k_extra"):
        load(tmp_path)


def test_progress_rises_to_one(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["qwen2"], tmp_path)
    seen: list[float] = []
    load_model(EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu"), seen.append)
    assert len(seen) > 10 and seen[0] > 0 and seen[-1] == 1.0
    assert all(left <= right for left, right in pairwise(seen))


def test_auto_keeps_a_float32_checkpoint_in_float32(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["qwen3"], tmp_path)
    model = load(tmp_path, "auto")
    assert model.dtype == model.kv_layout.dtype == torch.float32
    assert torch.equal(logits(model), logits(load(tmp_path)))


@pytest.mark.parametrize("name", ["qwen3", "qwen2", "qwen3-moe"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("auto", 0.03), ("bfloat16", 0.08)])
def test_sixteen_bit_checkpoint_is_close_to_exact(
    tmp_path: Path, name: str, dtype: DtypeName, tolerance: float
) -> None:
    """Relative to the spread of the logits; "auto" is far closer where the CPU computes in float32."""
    write_checkpoint(BY_NAME[name], tmp_path, torch.bfloat16)
    exact, got = logits(load(tmp_path)), logits(load(tmp_path, dtype))
    assert got.dtype == torch.float32
    assert ((got - exact).abs().mean() / exact.std()).item() < tolerance


def test_weight_beyond_half_precision(tmp_path: Path) -> None:
    """A bf16 weight that fp16 cannot hold is kept in float32, not made infinite."""
    theirs = write_checkpoint(BY_NAME["llama"], tmp_path)
    with torch.no_grad():
        theirs.model.layers[0].mlp.up_proj.weight[0, 0] = 1e6
    theirs.to(torch.bfloat16).save_pretrained(tmp_path)
    assert logits(load(tmp_path, "auto")).isfinite().all()


@pytest.mark.parametrize(("experts", "expected"), [(QWEN_MOE, [1]), (MIXED_MOE, [])])
def test_only_matrices_that_exist_decide_about_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experts: dict[str, object], expected: list[int]
) -> None:
    """A mixture of experts in every layer is small, however wide config.json calls the dense block."""
    write_checkpoint(Variant("wide", "qwen3_moe", {**experts, "intermediate_size": 4096}), tmp_path)
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    load(tmp_path)
    assert asked == expected


def test_more_threads_than_cores_are_the_users_choice(tmp_path: Path) -> None:
    """Also where OMP_NUM_THREADS says less, as in these tests."""
    wide = {"hidden_size": 512, "intermediate_size": 1024, "head_dim": 64}
    write_checkpoint(Variant("wide", "qwen3", wide), tmp_path, torch.bfloat16)
    found, before = list[torch.Tensor](), torch.get_num_threads()
    try:
        for num_threads in (1, 7):
            config = EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu", num_threads=num_threads)
            found.append(logits(load_model(config)))
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    one, seven = found
    assert ((one - seven).abs().max() / one.std()).item() < 0.02
