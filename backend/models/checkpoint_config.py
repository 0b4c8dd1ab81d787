"""Reads a checkpoint's config.json, in Hugging Face's format, into one ModelConfig. No torch.

What differs between families is asked of `families`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from backend.config import ModelConfig, RopeConfig
from backend.errors import CheckpointError
from backend.models.config_reader import ConfigReader
from backend.models.families import BY_MODEL_TYPE, FAMILIES, Family
from backend.models.families.family import SparseLayers
from backend.models.quantization import read_quantization

ACTIVATIONS = ("silu", "swish")
"""Two names of one function."""


def read_model_config(directory: str | Path) -> ModelConfig:
    """The shape of the model in `directory`. Raises CheckpointError, one sentence, if it is unsupported."""
    path = Path(directory) / "config.json"
    raw = read_json_object(path)
    family = _find_family(path, raw)
    reader = ConfigReader(path, {**family.defaults, **raw})
    _refuse_unsupported(reader)
    num_layers = reader.positive("num_hidden_layers")
    num_heads = reader.positive("num_attention_heads")
    hidden_size = reader.positive("hidden_size")
    num_kv_heads = reader.positive("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise reader.error(
            "num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads={num_heads}"
        )
    biases = family.read_biases(reader)
    sparse = _read_experts(reader, family, num_layers)
    return ModelConfig(
        architecture=family.architecture,
        checkpoint=str(directory),
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.positive("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=reader.positive("head_dim", hidden_size // num_heads),
        max_position_tokens=reader.positive("max_position_embeddings"),
        rms_norm_eps=reader.number("rms_norm_eps"),
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
        rope=_read_rope(reader),
        qkv_bias=biases.qkv,
        o_bias=biases.out,
        mlp_bias=biases.mlp,
        qk_norm=family.qk_norm,
        windows=family.read_windows(reader, num_layers),
        moe=None if sparse is None else sparse.moe,
        moe_layers=frozenset() if sparse is None else sparse.layers,
        quantization=read_quantization(reader),
    )


def context_tokens(config: ModelConfig, max_model_tokens: int | None) -> int:
    """The context length to serve: the limit, else the checkpoint's own. Raises CheckpointError."""
    context = config.max_position_tokens
    wanted = context if max_model_tokens is None else max_model_tokens
    if not 1 <= wanted <= context:
        raise CheckpointError(
            f"max_model_tokens is {wanted!r}, but {config.checkpoint!r} has a context of {context} tokens; "
            "lower it"
        )
    return wanted


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a checkpoint's JSON file. Raises CheckpointError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist; give the folder of a checkpoint in Hugging Face format "
            "(config.json, *.safetensors)"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); download it again") from None
    if not isinstance(raw, dict):
        kind = type(raw).__name__
        raise CheckpointError(f"{path} holds a {kind}, expected a JSON object; download it again")
    return raw


def _find_family(path: Path, raw: dict[str, Any]) -> Family:
    """The first of the checkpoint's architectures that is supported; without any, its model type's."""
    listed = raw.get("architectures")
    names, known = (listed, FAMILIES) if listed else ([raw.get("model_type", "unknown")], BY_MODEL_TYPE)
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str) and name in known:
            return known[name]
    raise CheckpointError(
        f"{path}: architecture {names!r} is not supported; "
        f"choose a checkpoint of one of {', '.join(FAMILIES)}"
    )


def _refuse_unsupported(reader: ConfigReader) -> None:
    raw = reader.raw
    if raw.get("hidden_act", "silu") not in ACTIVATIONS:
        raise reader.unsupported("hidden_act", raw["hidden_act"], "'silu'")


def _read_experts(reader: ConfigReader, family: Family, num_layers: int) -> SparseLayers | None:
    sparse = family.read_experts(reader, num_layers)
    if sparse is not None and sparse.moe.experts_per_token > sparse.moe.num_experts:
        expected = f"at most {sparse.moe.num_experts} experts"
        raise reader.error("num_experts_per_tok", sparse.moe.experts_per_token, expected)
    return sparse


def _read_rope(reader: ConfigReader) -> RopeConfig:
    """From transformers 4's `rope_scaling` and `rope_theta`, else from transformers 5's `rope_parameters`."""
    raw = reader.raw
    found = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(found, dict):
        raise reader.error("rope_parameters", found, "an object")
    if any(isinstance(value, dict) for value in found.values()):
        raise reader.unsupported("rope_parameters", sorted(found), "the same for all layers")
    section = ConfigReader(reader.path, found)
    theta = section.number("rope_theta", reader.number("rope_theta"))
    rope_type = found.get("rope_type", found.get("type", "default"))
    partial = found.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1):
        raise reader.unsupported("partial_rotary_factor", partial, "1.0")
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type not in ("linear", "llama3", "yarn"):
        raise reader.unsupported("rope_type", rope_type, "'default', 'linear', 'llama3' and 'yarn'")
    maximum = reader.number("max_position_embeddings")
    original = reader.number(
        "original_max_position_embeddings",  # in transformers the top level overrides the rope section
        section.number("original_max_position_embeddings", maximum),
    )
    if rope_type == "yarn" and found.get("factor") is None:
        factor = maximum / original
    else:
        factor = section.number("factor")
    return RopeConfig(
        rope_type=rope_type,
        theta=theta,
        factor=factor,
        original_max_tokens=int(original),
        low_freq_factor=section.number("low_freq_factor", 1.0),
        high_freq_factor=section.number("high_freq_factor", 4.0),
        beta_fast=section.number("beta_fast", 32.0) or 32.0,
        beta_slow=section.number("beta_slow", 1.0) or 1.0,
        attention_factor=_yarn_attention_factor(section, factor) if rope_type == "yarn" else 1.0,
        truncate=bool(found.get("truncate", True)),
    )


def _yarn_attention_factor(section: ConfigReader, factor: float) -> float:
    """YaRN's attention temperature, as a factor on cos and sin (arXiv:2309.00071, equation 22)."""
    if section.raw.get("attention_factor") is not None:
        return section.number("attention_factor")

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale = section.number("mscale", 0.0)
    mscale_all = section.number("mscale_all_dim", 0.0)
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)
