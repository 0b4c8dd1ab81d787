"""Folders that PEFT itself saves: what is read adds to the weights what PEFT adds when it merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from backend.errors import AdapterError
from backend.identifiers import text_name
from backend.lora.adapter_weights import WEIGHTS_FILE, read_adapter
from backend.models.loaded import LoadedModel, load_model
from tests.backend.lora.making import checkpoint

# PEFT warns of the weights that it saves and of ranks that it uses all the same, and asks transformers for a
# property under its former name.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The following rank_pattern keys:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:The following alpha_pattern keys:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
]


def save(family: str, folder: Path, targets: list[str] | str, **settings: Any) -> LoadedModel:  # noqa: ANN401
    """A random base, which is returned; folders `base`, `adapter`, and `merged` with both."""
    config = checkpoint(family, folder / "base")
    model = AutoModelForCausalLM.from_pretrained(config.checkpoint)
    lora = LoraConfig(r=3, lora_alpha=5, target_modules=targets, init_lora_weights=False, **settings)
    adapted = get_peft_model(model, lora)
    adapted.save_pretrained(folder / "adapter")
    adapted.merge_and_unload().save_pretrained(folder / "merged")
    return load_model(config)


@pytest.mark.parametrize(
    ("family", "targets", "settings"),
    [
        ("llama", ["q_proj", "down_proj", "lm_head"], {}),
        ("mixtral", ["w1", "w2", "w3"], {}),
        ("mixtral", ["v_proj", "w2"], {"use_rslora": True}),
        ("gemma3-nested-untied", r".*language_model.*\.(q_proj|up_proj)", {}),
        ("ernie4.5-untied", ["q_proj", "k_proj", "v_proj"], {}),
        ("qwen3-moe-mixed", ["gate_proj", "up_proj", "down_proj"], {}),
        (
            "qwen3-moe",
            [],
            {
                "target_parameters": ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"],
                "rank_pattern": {r"layers\.1\.mlp\.experts\.gate_up_proj": 5},
                "alpha_pattern": {"down_proj": 7},
            },
        ),
    ],
)
def test_adds_what_peft_adds(
    family: str, targets: list[str], settings: dict[str, Any], tmp_path: Path
) -> None:
    model = save(family, tmp_path, targets, **settings)
    adapter = read_adapter(tmp_path / "adapter", model.sites, 8, torch.float32)
    files = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "merged"))
    base, merged = ({text_name(name): tensor for name, tensor in file.items()} for file in files)
    changed = {name for name, weight in merged.items() if not torch.equal(weight, base[name])}
    assert changed == {f"{module}.weight" for module in adapter.factors}
    for module, (down, up) in adapter.factors.items():
        name = f"{module}.weight"
        order = model.sites[module].order  # of rows whose rotation pairs neighbours
        assert (order is None) == ("ernie" not in family or "v_proj" in module)
        rows = slice(None) if order is None else order
        torch.testing.assert_close(base[name][rows] + up.T @ down, merged[name][rows])


def test_names_of_nested_modules(tmp_path: Path) -> None:
    """PEFT names modules as transformers did when the adapter was trained, or as the decoder alone."""
    model = save("gemma3-nested", tmp_path, r".*language_model.*\.q_proj")
    path = tmp_path / "adapter" / WEIGHTS_FILE
    new = load_file(path)
    prefix = "base_model.model.model.language_model."
    assert all(name.startswith(prefix) for name in new)
    expected = read_adapter(path.parent, model.sites, 8, torch.float32).factors
    for other in ("base_model.model.language_model.model.", "base_model.model.model."):
        save_file({name.replace(prefix, other): tensor for name, tensor in new.items()}, path)
        found = read_adapter(path.parent, model.sites, 8, torch.float32).factors
        assert found.keys() == expected.keys() and len(found) == 3
        assert all(torch.equal(up, expected[module][1]) for module, (_, up) in found.items())


def test_experts_of_another_base_are_refused(tmp_path: Path) -> None:
    model = save("mixtral", tmp_path, ["w2"])
    path = tmp_path / "adapter" / WEIGHTS_FILE
    whole = load_file(path)
    module = "model.layers.1.mlp.experts"
    down, up = f"base_model.model.{module}.lora_A.weight", f"base_model.model.{module}.lora_B.weight"
    for tensors in (
        whole | {down: whole[down][:-1].contiguous(), up: whole[up][:, :-1].contiguous()},
        whole | {down: whole[down][:, :-1].contiguous()},
        whole | {down: whole[down][:0].contiguous(), up: whole[up][:, :0].contiguous()},
        whole | {down: whole[down].view(-1)},
        whole | {name.replace("experts", "experts.base_layer"): whole[name].clone() for name in (down, up)},
    ):
        save_file(tensors, path)
        with pytest.raises(AdapterError, match=rf"'{module}.*' has shapes .* fit no parameter"):
            read_adapter(path.parent, model.sites, 8, torch.float32)
    save_file(whole, path)
    with pytest.raises(AdapterError, match="has rank 3, and this engine takes up to 2"):
        read_adapter(path.parent, model.sites, 2, torch.float32)


def test_a_head_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """Beside an adapter of the head PEFT saves the head's own weights."""
    model = save("llama", tmp_path, ["lm_head"])
    path = tmp_path / "adapter" / WEIGHTS_FILE
    tensors = load_file(path)
    name = "base_model.model.lm_head.base_layer.weight"
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, path)
    with pytest.raises(AdapterError, match=rf"'{name}' has shape \[198, 64\], but .* \[199, 64\]"):
        read_adapter(path.parent, model.sites, 8, torch.float32)


def test_the_heads_own_weights_do_not_count_as_the_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save("llama", tmp_path, ["lm_head"])
    monkeypatch.setattr("backend.lora.adapter_weights._HEADER_BYTES", 1 << 10)
    adapter = read_adapter(tmp_path / "adapter", model.sites, 3, torch.float32)
    assert adapter.num_bytes == 3 * (199 + 64) * 4
