"""Reads a checkpoint's config.json, in Hugging Face's format, into one ModelConfig. No torch.

What differs between families is asked of `families`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backend.config import LayerSpec, ModelConfig, MoEConfig
from backend.errors import CheckpointError
from backend.models.config_reader import ConfigReader
from backend.models.families import BY_MODEL_TYPE, FAMILIES, Family
from backend.models.layer_specs import read_activation
from backend.models.quantization import read_quantization
from backend.models.rope_config import for_context

_TIED = "tie_word_embeddings"
_OFTEN_OUTSIDE = (
    *(_TIED, "quantization_config", "num_key_value_heads", "head_dim", "sliding_window", "layer_types"),
    *("rope_scaling", "rope_parameters"),
)
"""Keys of a nested decoder, beside those with a default, that may stand outside of its section."""


def read_model_config(directory: str | Path, max_model_tokens: int | None = None) -> ModelConfig:
    """The shape of the model in `directory`. Raises CheckpointError, one sentence, if it is unsupported.

    `max_model_tokens`: the context that is served; None: the checkpoint's own.
    """
    path = Path(directory) / "config.json"
    raw = read_json_object(path)
    family = _find_family(path, raw)
    text, raw = _text_of(path, family, raw) if family.texts else (family, raw)
    reader = ConfigReader(path, {**text.defaults, **_spelt(path, text, raw)})
    layers, longest = text.read_layers(reader), reader.positive("max_position_embeddings")
    _check_experts(reader, layers)
    return ModelConfig(
        architecture=family.architecture,
        checkpoint=str(directory),
        vocab_size=reader.positive("vocab_size"),
        hidden_size=reader.positive("hidden_size"),
        layers=tuple(for_context(layer, max_model_tokens or longest) for layer in layers),
        max_position_tokens=longest,
        rms_norm_eps=reader.positive_number(text.eps_key),
        norm=text.norm,
        scalars=text.read_scalars(reader),
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
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
    except (OSError, ValueError, RecursionError) as error:
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


def _text_of(path: Path, family: Family, raw: dict[str, Any]) -> tuple[Family, dict[str, Any]]:
    """The family of a nested decoder, and its section: `text_config`, with what stands outside of it.

    Raises CheckpointError, as for a key with two values. Only whether the head is tied to the embedding may
    differ: transformers reads that outside, and writes it in both places.
    """
    outer, section = ConfigReader(path, raw), raw.get("text_config")
    if not isinstance(section, dict):
        raise outer.error("text_config", section, "an object")
    by_type = {text.model_type: text for text in family.texts}
    kind = section.get("model_type", family.texts[0].model_type)
    text = by_type.get(kind) if isinstance(kind, str) else None
    if text is None:
        raise outer.unsupported("text_config.model_type", kind, " and ".join(map(repr, by_type)))
    found = dict(section)
    for key in sorted({*text.defaults, *_OFTEN_OUTSIDE} & raw.keys()):
        inside, outside = section.get(key), raw[key]
        if outside is None or inside == outside:
            continue
        if inside is not None and key != _TIED:
            raise outer.error(key, outside, f"{inside!r} as in 'text_config'")
        found[key] = outside
    return text, found


def _spelt(path: Path, family: Family, raw: dict[str, Any]) -> dict[str, Any]:
    """With the family's other spellings of keys replaced. Raises CheckpointError where values differ."""
    found = dict(raw)
    for other, key in family.spellings.items():
        value = found.pop(other, None)
        if value is None:
            continue
        if found.get(key, value) != value:
            raise ConfigReader(path, raw).error(other, value, f"{found[key]!r} as under {key!r}")
        found[key] = value
    return found


def _check_experts(reader: ConfigReader, layers: tuple[LayerSpec, ...]) -> None:
    for block in {layer.feed_forward for layer in layers}:
        if isinstance(block, MoEConfig) and block.gate not in ("gelu_tanh", "relu2"):
            read_activation(reader, only=("silu",))
        if isinstance(block, MoEConfig) and block.experts_per_token > block.num_experts:
            expected = f"at most {block.num_experts} experts"
            raise reader.error("num_experts_per_tok", block.experts_per_token, expected)
