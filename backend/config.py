"""What the engine is told (EngineConfig) and what a checkpoint says about itself (ModelConfig).

Plain Python without torch. ModelConfig normalises Hugging Face's config.json: where families differ only by
the name or the default of a key, that is settled here, so that models/ and layers/ see one shape.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from backend.errors import CheckpointError

DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16"]
RopeType = Literal["default", "linear", "llama3", "yarn"]


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who guesses what comes next, for the model to verify several tokens in one step."""

    drafter: str = "none"
    max_tokens: int = 8  # drafted per step and sequence; fewer where measurements say so
    tree_nodes: int = 0  # of drafts that branch, `max_tokens` deep; 0: drafts are chains
    adaptive: bool = True  # False: always as many, also where that is slower
    folders: dict[str, str] = {}  # by drafter that has weights: their absolute folder; all are loaded


class RestoredAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter that was loaded when the engine's process ended."""

    folder: str  # absolute
    digest: str  # of what was loaded: other weights must be loaded by somebody who wants them


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that one engine process is told; crosses the process border as JSON."""

    model: str  # the name that clients ask for
    checkpoint: str  # absolute folder, Hugging Face format
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"  # auto: bfloat16 on a GPU or a CPU with AMX, else float32
    max_model_tokens: int | None = None  # None: from the checkpoint, capped by the KV memory
    # None: on CPU 25 % of free memory, at most 1 GiB; on cuda 85 % of what the weights leave
    kv_cache_bytes: int | None = None
    num_pages: int | None = None  # overrides kv_cache_bytes
    max_batch_tokens: int = 2048
    max_running: int = 128
    max_queue: int = 512
    num_threads: int | None = None  # of torch; None: 1 for small models, else torch's own choice
    prefix_cache: bool = True
    speculative: SpeculativeConfig = SpeculativeConfig()
    adapters: dict[str, str] = {}  # name → absolute folder in PEFT's format; loaded at start
    # By name; loaded at start as well, but one that cannot be read any more is passed over.
    restored_adapters: dict[str, RestoredAdapter] = {}
    adapter_slots: int = 8  # different adapters in one batch
    max_adapter_rank: int = 64
    adapter_host_bytes: int = 1 << 30  # host memory for adapters that are not on the device
    otlp_endpoint: str = ""  # "" switches engine spans off
    otlp_protocol: str = "http/protobuf"  # or "grpc"
    otlp_headers: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequencies and how they are stretched beyond the training length."""

    rope_type: RopeType = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_tokens: int = 0  # llama3, yarn: the context length before stretching
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn: multiplies cos and sin
    truncate: bool = True  # yarn: round the correction range to whole dimensions


@dataclass(frozen=True, slots=True)
class HyperMoEConfig:
    """A hypernetwork that all layers share gives each set of chosen experts an adapter (HyperMoE)."""

    # In config.json, under "hyper_moe", all four are required: the defaults are those of training.
    embedding_size: int = 16  # of an expert and of a layer
    hidden_size: int = 64  # of the network between embeddings and condition
    condition_size: int = 24  # what an adapter is generated from
    rank: int = 4  # of an adapter


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Mixture of experts in the layers listed by ModelConfig.moe_layers."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int  # of one expert
    normalise_top_k: bool  # the chosen experts' weights are scaled to sum to 1
    hyper: HyperMoEConfig | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder, whatever its family."""

    architecture: str  # "LlamaForCausalLM" …: selects the family file in models/
    checkpoint: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of the dense MLP
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_tokens: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope: RopeConfig
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    # Per layer: how many tokens attention sees, the query's own included; None: all.
    windows: tuple[int | None, ...] = ()
    moe: MoEConfig | None = None
    moe_layers: frozenset[int] = frozenset()

    @classmethod
    def from_checkpoint(cls, directory: str | Path) -> ModelConfig:
        """Read `directory`/config.json. Raises CheckpointError with one sentence when it cannot be served."""
        path = Path(directory) / "config.json"
        raw = _read_json(path)
        reader = _Reader(path, raw)
        architecture = _architecture(path, raw)
        _refuse_unsupported(reader)
        num_layers = reader.positive("num_hidden_layers")
        num_heads = reader.positive("num_attention_heads")
        hidden_size = reader.positive("hidden_size")
        num_kv_heads = reader.positive("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            expected = f"a divisor of num_attention_heads={num_heads}"
            raise reader.error("num_key_value_heads", num_kv_heads, expected)
        attention_bias = bool(raw.get("attention_bias", False))
        moe, moe_layers = _moe(reader, architecture, num_layers)
        return cls(
            architecture=architecture,
            checkpoint=str(directory),
            vocab_size=reader.positive("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=reader.positive("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            # Qwen3's config class defaults to 128 and always writes the key; the others derive it.
            head_dim=reader.positive("head_dim", _default_head_dim(architecture, hidden_size, num_heads)),
            max_position_tokens=reader.positive("max_position_embeddings"),
            rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            rope=_rope(reader),
            qkv_bias=architecture == "Qwen2ForCausalLM" or attention_bias,
            o_bias=architecture != "Qwen2ForCausalLM" and attention_bias,
            mlp_bias=architecture == "LlamaForCausalLM" and bool(raw.get("mlp_bias", False)),
            qk_norm=architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
            windows=_windows(reader, architecture, num_layers),
            moe=moe,
            moe_layers=moe_layers,
        )


SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)


class _Reader:
    """Typed access to config.json; a wrong value becomes a CheckpointError that names the key."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self.path = path
        self.raw = raw

    def error(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key!r} is {value!r}, expected {expected}; repair config.json")

    def number(self, key: str, default: float | None = None, within: dict[str, Any] | None = None) -> float:
        """A number under `key`; `default` when the key is absent or null, an error without one."""
        value = (self.raw if within is None else within).get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, value, "a number")
        return float(value)

    def positive(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self.number(key, default)
        if value < 1 or value != int(value):
            raise self.error(key, self.raw.get(key), "a positive whole number")
        return int(value)


def _read_json(path: Path) -> dict[str, Any]:
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


def _architecture(path: Path, raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or [raw.get("model_type", "unknown")]
    known = [name for name in names if name in SUPPORTED_ARCHITECTURES] if isinstance(names, list) else []
    if not known:
        raise CheckpointError(
            f"{path}: architecture {names!r} is not supported; "
            f"choose a checkpoint of one of {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    return str(known[0])


def _refuse_unsupported(reader: _Reader) -> None:
    raw = reader.raw
    if raw.get("quantization_config") is not None:
        method = dict(raw["quantization_config"]).get("quant_method")
        raise CheckpointError(
            f"{reader.path}: quantised checkpoints ({method!r}) are not supported; "
            "use the unquantised checkpoint"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise reader.error("hidden_act", raw["hidden_act"], "'silu'")


def _default_head_dim(architecture: str, hidden_size: int, num_heads: int) -> int:
    if architecture == "Qwen3ForCausalLM":
        return 128
    return hidden_size // num_heads


def _windows(reader: _Reader, architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Each layer's sliding window, by the rules of its family."""
    raw = reader.raw
    window = None if raw.get("sliding_window") is None else reader.positive("sliding_window")
    if architecture == "LlamaForCausalLM" or window is None:
        return (None,) * num_layers
    if architecture in ("MistralForCausalLM", "MixtralForCausalLM"):
        return (window,) * num_layers
    if not raw.get("use_sliding_window", False):
        return (None,) * num_layers
    if architecture == "Qwen3MoeForCausalLM":
        return (window,) * num_layers
    layer_types = raw.get("layer_types")
    if layer_types is None:
        first = int(reader.number("max_window_layers", 28))
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise reader.error("layer_types", layer_types, f"a list of {num_layers} names")
    if unknown := set(layer_types) - {"sliding_attention", "full_attention"}:
        raise reader.error("layer_types", sorted(unknown), "'full_attention' or 'sliding_attention'")
    return tuple(window if name == "sliding_attention" else None for name in layer_types)


def _moe(reader: _Reader, architecture: str, num_layers: int) -> tuple[MoEConfig | None, frozenset[int]]:
    raw = reader.raw
    if architecture == "MixtralForCausalLM":
        moe = MoEConfig(
            num_experts=reader.positive("num_local_experts", 8),
            experts_per_token=reader.positive("num_experts_per_tok", 2),
            intermediate_size=reader.positive("intermediate_size"),
            normalise_top_k=True,
        )
        layers = frozenset(range(num_layers))
    elif architecture == "Qwen3MoeForCausalLM":
        key = "num_experts" if "num_experts" in raw else "num_local_experts"
        moe = MoEConfig(
            num_experts=reader.positive(key, 128),
            experts_per_token=reader.positive("num_experts_per_tok", 8),
            intermediate_size=reader.positive("moe_intermediate_size", 768),
            normalise_top_k=bool(raw.get("norm_topk_prob", False)),
        )
        step = reader.positive("decoder_sparse_step", 1)
        dense = set(raw.get("mlp_only_layers") or ())
        layers = frozenset(i for i in range(num_layers) if i not in dense and (i + 1) % step == 0)
    elif raw.get("hyper_moe") is not None:
        raise reader.error(
            "hyper_moe", raw["hyper_moe"], f"no such key for {architecture}, which has no experts"
        )
    else:
        return None, frozenset()
    if moe.experts_per_token > moe.num_experts:
        raise reader.error("num_experts_per_tok", moe.experts_per_token, f"at most {moe.num_experts} experts")
    hyper = _hyper_moe(reader)
    if hyper is not None and moe.experts_per_token == moe.num_experts:
        raise reader.error("num_experts_per_tok", moe.experts_per_token, "fewer than all experts (hyper_moe)")
    return replace(moe, hyper=hyper), layers


def _hyper_moe(reader: _Reader) -> HyperMoEConfig | None:
    found = reader.raw.get("hyper_moe")
    if found is None:
        return None
    names = [field.name for field in fields(HyperMoEConfig)]
    if not isinstance(found, dict) or set(found) != set(names):
        raise reader.error("hyper_moe", found, f"an object with {', '.join(names)}")
    section = _Reader(reader.path, found)
    return HyperMoEConfig(**{name: section.positive(name) for name in names})


def _rope(reader: _Reader) -> RopeConfig:
    """From transformers 5's `rope_parameters`, or `rope_scaling` and `rope_theta` before it."""
    raw = reader.raw
    found = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise reader.error("rope_parameters", found, "an object")
    # Architecture defaults for a missing theta: only Mixtral's config class has its own.
    theta_default = 1e6 if raw.get("model_type") == "mixtral" else 1e4
    theta = reader.number("rope_theta", reader.number("rope_theta", theta_default), within=found)
    rope_type = found.get("rope_type", found.get("type", "default"))
    if found.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) not in (None, 1, 1.0):
        raise reader.error("partial_rotary_factor", found.get("partial_rotary_factor"), "1.0")
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type not in ("linear", "llama3", "yarn"):
        raise reader.error("rope_type", rope_type, "one of 'default', 'linear', 'llama3', 'yarn'")
    maximum = reader.number("max_position_embeddings")
    original = reader.number(
        "original_max_position_embeddings",  # transformers lets the top level win over the rope section
        reader.number("original_max_position_embeddings", maximum, within=found),
    )
    if rope_type == "yarn" and found.get("factor") is None:
        factor = maximum / original
    else:
        factor = reader.number("factor", within=found)
    return RopeConfig(
        rope_type=rope_type,
        theta=theta,
        factor=factor,
        original_max_tokens=int(original),
        low_freq_factor=reader.number("low_freq_factor", 1.0, within=found),
        high_freq_factor=reader.number("high_freq_factor", 4.0, within=found),
        beta_fast=reader.number("beta_fast", 32.0, within=found) or 32.0,
        beta_slow=reader.number("beta_slow", 1.0, within=found) or 1.0,
        attention_factor=_yarn_attention_factor(reader, found, factor) if rope_type == "yarn" else 1.0,
        truncate=bool(found.get("truncate", True)),
    )


def _yarn_attention_factor(reader: _Reader, found: dict[str, Any], factor: float) -> float:
    """The temperature that YaRN puts on attention, as a factor on cos and sin (arXiv:2309.00071, eq. 22)."""
    if found.get("attention_factor") is not None:
        return reader.number("attention_factor", within=found)

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale = reader.number("mscale", 0.0, within=found)
    mscale_all = reader.number("mscale_all_dim", 0.0, within=found)
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)
