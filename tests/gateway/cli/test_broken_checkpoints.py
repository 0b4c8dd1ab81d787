"""Every way a checkpoint can be broken ends `penstock serve` or its engine with code 2 and one sentence."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.server import engine_process, serve
from gateway.cli.main import main
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.families.configs import SHAPE
from tests.backend.models.quantized import FP8, fp8, quantize

BY_NAME = {variant.name: variant for variant in VARIANTS}
FULL, SLIDING = "full_attention", "sliding_attention"

CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("Gemma3", {"layer_types": [FULL, FULL, SLIDING, "chunked_attention"]}, "'layer_types' is ['chunked_"),
    ("Gemma3", {"layer_types": [FULL, SLIDING, FULL]}, "'layer_types' is ['full_"),
    ("Gemma3", {"sliding_window": 0}, "'sliding_window' is 0"),
    ("Mistral", {"sliding_window": 0}, "'sliding_window' is 0"),
    ("HYV3", {"mlp_layer_types": ["sparse"] * 3}, "'mlp_layer_types' is ['sparse'"),
    ("SmolLM3", {"no_rope_layers": [1, 0]}, "'no_rope_layers' is [1, 0]"),
    ("Qwen2Moe", {"num_experts": 4, "num_local_experts": 5}, "'num_experts' is 4, expected the same as"),
    ("Gemma4", {"global_head_dim": 32, "per_layer_config": {"3": {"head_dim": 16}}}, "'per_layer_config' is"),
    ("Gemma4", {"num_kv_shared_layers": 4}, "'num_kv_shared_layers' is 4, expected fewer than"),
    ("Gemma4", {"num_kv_shared_layers": 9}, "'num_kv_shared_layers' is 9, expected fewer than"),
    ("Glm4Moe", {"n_routed_experts": 8, "n_group": 3, "head_dim": 16}, "'n_group' is 3, expected a divisor"),
    ("Llama", {"rope_scaling": {"type": "axial"}}, "'rope_type' 'axial' is not supported"),
    ("Phi3", {"rope_scaling": {"type": "longrope"}}, "'short_factor' is None"),
    ("Llama", {"hidden_act": "gelu_new"}, "'hidden_act' 'gelu_new' is not supported"),
    ("Llama", {"hidden_act": ["silu"]}, "'hidden_act' ['silu'] is not supported"),
    ("Llama", {"quantization_config": {"quant_method": "aqlm"}}, "'quant_method' 'aqlm' is not supported"),
]


def one_sentence(said: str, *fragments: str) -> None:
    assert said.count("\n") <= 1 and "Traceback" not in said
    for fragment in fragments:
        assert fragment in said, said


@pytest.mark.parametrize(("family", "changes", "fragment"), CONFIGS, ids=lambda value: str(value)[:60])
def test_config(
    family: str,
    changes: dict[str, Any],
    fragment: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw = {"architectures": [f"{family}ForCausalLM"], **SHAPE, **changes}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert main(["serve", "--port", "0", "--only", "--model", f"q={tmp_path}"]) == 2
    one_sentence(capsys.readouterr().err, f"penstock: --model q: {tmp_path}/config.json: ", fragment)


def start_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, object]:
    """What an engine process reports last; its exit code is 2."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(serve, "configure_root", lambda *_: None)
    config = json.dumps({"model": "q", "checkpoint": str(folder), "device": "cpu"}).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(config + b"\n")))
    assert engine_process.main(["--listen-fd", "0"]) == 2
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


Tensors = dict[str, torch.Tensor]


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


QUERY = "model.layers.0.self_attn.q_proj.weight"
BREAKS: list[tuple[str, Callable[[Path], None], tuple[str, ...]]] = [
    ("llama", lambda at: edit_config(at, head_dim=32), (QUERY, "[64, 64]", "[128, 64]")),
    ("gemma4-dense", lambda at: edit_config(at, head_dim=32), (QUERY, "[64, 64]", "[128, 64]")),
    (
        "gemma4-dense",
        lambda at: edit_config(at, global_head_dim=64, per_layer_config={"2": {"head_dim": 64}}),
        ("model.layers.2.self_attn.q_proj.weight", "[128, 64]", "[256, 64]"),
    ),
    ("llama", lambda at: edit_tensors(at, lambda found: found.pop(QUERY)), (QUERY, "incomplete")),
    (
        "llama",
        lambda at: edit_tensors(at, lambda found: found.update({"model.extra.weight": torch.ones(1)})),
        ("model.safetensors", "'model.extra.weight'", "does not have"),
    ),
]


@pytest.mark.parametrize(("variant", "damage", "fragments"), BREAKS)
def test_weights(
    variant: str,
    damage: Callable[[Path], None],
    fragments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_checkpoint(BY_NAME[variant], tmp_path)
    damage(tmp_path)
    found = start_engine(tmp_path, monkeypatch, capsys)
    assert found["phase"] == "failed"
    one_sentence(str(found["error"]), str(tmp_path), *fragments)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_scales_that_are_no_numbers(
    wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(BY_NAME["llama"], tmp_path / "plain")
    folder, _ = quantize(tmp_path / "plain", FP8, fp8)
    name = QUERY + "_scale"
    edit_tensors(folder, lambda found: found[name].fill_(wrong))
    found = start_engine(folder, monkeypatch, capsys)
    one_sentence(str(found["error"]), "model.safetensors", repr(name), "download it again")
