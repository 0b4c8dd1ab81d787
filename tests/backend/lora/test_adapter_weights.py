"""Reading adapters: what is kept, what identifies them, and a clear word for each thing that can be wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.errors import AdapterError
from backend.lora.adapter_weights import Adapter, read_adapter
from backend.lora.bounded_reader import BoundedReader
from backend.models.loaded import LoadedModel, load_model
from tests.backend.lora.making import Recipe, checkpoint, write_adapter

QUERY = "model.layers.0.self_attn.q_proj"
TENSOR = f"base_model.model.{QUERY}.lora_A.weight"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("base") / "b"
    return load_model(checkpoint("qwen3", folder))


def read(folder: Path, model: LoadedModel, max_rank: int = 16) -> Adapter:
    return read_adapter(folder, model.sites, max_rank, torch.float32)


def change_config(folder: Path, **changes: Any) -> None:  # noqa: ANN401
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_ranks_scales_and_dtypes(tmp_path: Path, model: LoadedModel) -> None:
    recipe = Recipe(rank=4, alpha=6.0, rank_pattern={"k_proj": 9}, dtype=torch.bfloat16)
    adapter = read(write_adapter(tmp_path, model, recipe), model)
    assert adapter.rank == 9 and adapter.base == "t"
    assert set(adapter.factors) == set(model.sites)
    stored = load_file(tmp_path / WEIGHTS)
    down, up = adapter.factors[QUERY]
    assert down.dtype == up.dtype == torch.float32
    assert torch.equal(down, stored[TENSOR].float())
    assert torch.equal(up, stored[TENSOR.replace("_A", "_B")].float().T * 1.5)
    change_config(tmp_path, use_rslora=True, alpha_pattern={r"layers\.0\.self_attn\.q_proj": 10.0})
    _, up = read(tmp_path, model).factors[QUERY]
    torch.testing.assert_close(up, stored[TENSOR.replace("_A", "_B")].float().T * 5.0)


def test_the_digest_follows_config_and_tensors_only(tmp_path: Path, model: LoadedModel) -> None:
    write_adapter(tmp_path / "a", model, Recipe(seed=1))
    write_adapter(tmp_path / "b", model, Recipe(seed=1))
    first = read(tmp_path / "a", model).digest
    (tmp_path / "b" / CONFIG).write_text(
        json.dumps(json.loads((tmp_path / "b" / CONFIG).read_text()), indent=3)
    )
    assert read(tmp_path / "b", model).digest == first and len(first) == 64
    change_config(tmp_path / "b", lora_alpha=9)
    assert read(tmp_path / "b", model).digest != first
    change_tensors(tmp_path / "a", lambda tensors: tensors[TENSOR][0].add_(1e-3))
    assert read(tmp_path / "a", model).digest != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "'peft_type' is 'IA3'; only 'LORA' is served"),
        ({"use_dora": True}, "'use_dora' is True, which means DoRA"),
        ({"bias": "lora_only"}, "'bias' is 'lora_only'"),
        ({"modules_to_save": ["embed_tokens"]}, "'modules_to_save'"),
        (
            {"target_parameters": ["mlp.gate.weight"]},
            "has 'mlp.gate.weight'; served are gate_up_proj",
        ),
        ({"target_parameters": "gate_up_proj"}, "'target_parameters' is 'gate_up_proj'; it must be a list"),
        ({"target_parameters": [1]}, "'target_parameters' has 1"),
        ({"target_parameters": ["x.down_proj"]}, "'peft_version' is None.* since 0.19.1"),
        ({"target_parameters": ["x.down_proj"], "peft_version": "0.19.0"}, "'peft_version' is '0.19.0'"),
        ({"target_parameters": ["x.down_proj"], "peft_version": 1}, "'peft_version' is 1"),
        ({"trainable_token_indices": [1]}, "'trainable_token_indices'"),
        ({"lora_bias": True}, "'lora_bias'"),
        ({"init_lora_weights": "pissa_niter_4"}, "'init_lora_weights' is 'pissa_niter_4'"),
        ({"r": 0}, "'r' is 0; it must be a positive whole number"),
        ({"r": "8"}, "'r' is '8'; it must be a number"),
        ({"lora_alpha": None}, "'lora_alpha' is None"),
        ({"lora_alpha": 1e300}, "'lora_alpha' is 1e.300, with which '.*lora_B.weight' holds .* not finite"),
        ({"alpha_pattern": {"q_proj": -1e300}}, r"alpha_pattern\['q_proj'\].* is -1e.300, with which"),
        ({"rank_pattern": {"q_proj": "x"}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj(": 4.0}}, "no regular expression"),
        ({"alpha_pattern": {r"(\w|\w\w|\.)+!": 4.0}}, "may take long"),
        ({"alpha_pattern": {r"(\w|\w\w|\.){1,99}!": 4.0}}, "may take long"),
        ({"rank_pattern": {r"\w*" * 9 + "!": 4}}, "may take long"),
        ({"r": 5}, r"has shape \[4, (\d+)\], but rank and base model imply \[5, \1\].*'t'"),
    ],
)
def test_configs_that_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, model: LoadedModel
) -> None:
    write_adapter(tmp_path, model, Recipe())
    change_config(tmp_path, **changes)
    with pytest.raises(AdapterError, match=message) as refused:
        read(tmp_path, model)
    assert str(tmp_path) in str(refused.value)


def _nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[TENSOR][0, 0] = torch.nan


def _nan_behind_the_scale(tensors: dict[str, torch.Tensor]) -> None:
    tensors[TENSOR.replace("_A", "_B")][0, 0] = torch.nan


def _too_narrow(tensors: dict[str, torch.Tensor]) -> None:
    tensors[TENSOR] = tensors[TENSOR][:, :-1].contiguous()


def _integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors[TENSOR] = tensors[TENSOR].to(torch.int8)


def _strange(tensors: dict[str, torch.Tensor]) -> None:
    tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = torch.zeros(1)


def _more_layers(tensors: dict[str, torch.Tensor]) -> None:
    tensors[TENSOR.replace("layers.0", "layers.99")] = tensors[TENSOR].clone()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_nan, f"'{QUERY}.lora_A.weight' holds a number that is not finite"),
        (
            _nan_behind_the_scale,
            f"'{QUERY}.lora_B.weight' holds a number that is not finite .*train it again",
        ),
        (_too_narrow, r"has shape \[4, 63\]"),
        (_integers, "is torch.int8; save it in float32, bfloat16 or float16"),
        (_strange, "no place for the tensor 'base_model.model.model.embed_tokens.lora_embedding_A'"),
        (_more_layers, "no place for the tensor .*layers.99.* names 't' as its base"),
        (lambda tensors: tensors.pop(TENSOR), f"'{QUERY}' has no lora_A.weight"),
        (lambda tensors: tensors.clear(), "holds no tensor"),
    ],
)
def test_tensors_that_are_refused(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, tmp_path: Path, model: LoadedModel
) -> None:
    write_adapter(tmp_path, model, Recipe())
    change_tensors(tmp_path, change)
    with pytest.raises(AdapterError, match=message) as refused:
        read(tmp_path, model)
    assert WEIGHTS in str(refused.value)


def test_files_that_are_refused(tmp_path: Path, model: LoadedModel) -> None:
    folder = write_adapter(tmp_path / "a", model, Recipe())
    with pytest.raises(AdapterError, match="has rank 4, and this engine takes up to 2"):
        read(folder, model, max_rank=2)
    whole = (folder / WEIGHTS).read_bytes()
    for content in (whole[:-5], b"", b"\xff" * 64, (2**60).to_bytes(8, "little") + b"{}"):
        (folder / WEIGHTS).write_bytes(content)
        with pytest.raises(AdapterError, match="is not a complete safetensors file"):
            read(folder, model)
    (folder / WEIGHTS).write_bytes(b"\0" * (1 << 23))
    with pytest.raises(AdapterError, match="is larger than the"):
        read(folder, model, max_rank=1)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(AdapterError, match=r"adapter_model.bin is not read"):
        read(folder, model)
    for content in (b"[]", b"{", b"\xff", b"[" * 100_000):
        (folder / CONFIG).write_bytes(content)
        with pytest.raises(AdapterError, match=CONFIG):
            read(folder, model)
    with pytest.raises(AdapterError, match="does not exist; give the folder of an adapter in PEFT's format"):
        read(tmp_path / "none", model)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_what_is_no_regular_file_is_not_waited_for(name: str, tmp_path: Path, model: LoadedModel) -> None:
    folder = write_adapter(tmp_path, model, Recipe())
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(AdapterError, match=f"{name} is no regular file; put a copy"):
        BoundedReader[Adapter](limit_s=20).call(
            lambda: read(folder, model), "the pipe"
        )  # else it waits forever
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(AdapterError, match=f"{name} is no regular file; put a copy"):
        read(folder, model)
