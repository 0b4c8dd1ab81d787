"""Reads adapter_config.json as PEFT writes it: rank and scale. What is not plain LoRA is rejected by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from backend.errors import AdapterError
from backend.lora.bounded_reader import read_regular_file

PARAMETERS = ("gate_up_proj", "down_proj")
"""What `target_parameters` may name: the tensors of stacked experts in transformers."""
CONFIG_FILE = "adapter_config.json"
_MAX_CONFIG_BYTES = 1 << 20
_MAX_PATTERN_CHARS = 256
_MAX_REPEATS = 3
_REPEATS = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")

# Key → what it means and what to do about it. All are off when absent, null, false or empty.
_REFUSED: dict[str, str] = {
    "use_dora": "DoRA; train with use_dora=False",
    "use_qalora": "QA-LoRA; train with use_qalora=False",
    "use_bdlora": "block-diagonal LoRA; train without use_bdlora",
    "modules_to_save": "whole modules beside the low-rank matrices; train without modules_to_save",
    "lora_bias": "a bias in the adapter; train with lora_bias=False",
    "trainable_token_indices": "trained token embeddings; train without trainable_token_indices",
    "layer_replication": "a base with repeated layers; train without layer_replication",
    "fan_in_fan_out": "transposed weights; train with fan_in_fan_out=False",
    "alora_invocation_tokens": "an activated LoRA; train without alora_invocation_tokens",
    "arrow_config": "a router over adapters; load its adapters one by one",
}
_EXPERTS_SINCE = (0, 19, 1)
"""Before this version of PEFT, A and B of stacked experts were swapped."""

_CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What is needed to apply an adapter's matrices."""

    path: Path
    raw: dict[str, Any]
    rank: int
    alpha: float
    is_rank_stabilised: bool
    base: str  # the base model that the adapter names

    @property
    def canonical(self) -> bytes:
        """Canonical JSON: equal for equal settings, whatever their order in the file."""
        return json.dumps(self.raw, sort_keys=True, separators=(",", ":")).encode()

    def rank_of(self, module: str) -> int:
        """The rank that the config gives a module."""
        _, rank = self._pattern("rank_pattern", module, ("r", self.rank))
        return int(rank)

    def scale_of(self, module: str, rank: int) -> float:
        """The factor of up · down: alpha / rank, or alpha / sqrt(rank) for rsLoRA (arXiv:2312.03732)."""
        _, alpha = self.alpha_of(module)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)

    def alpha_of(self, module: str) -> tuple[str, float]:
        """The key that sets a module's alpha, and its value."""
        key, alpha = self._pattern("alpha_pattern", module, ("lora_alpha", self.alpha))
        return key, float(alpha)

    def _pattern(self, key: str, module: str, default: tuple[str, float]) -> tuple[str, float]:
        """PEFT's rule: the first key that matches the end of the module's name as a regular expression."""
        for pattern, value in (self.raw.get(key) or {}).items():
            if _matches(pattern, module):
                name = f"{key}[{pattern!r}]"
                return name, _number(self.path, name, value)
        return default


def read_config(folder: Path) -> AdapterConfig:
    """The config in `folder`. Raises AdapterError."""
    path = folder / CONFIG_FILE
    raw = _read(path)
    if raw.get("peft_type") != "LORA":
        raise AdapterError(f"{path}: 'peft_type' is {raw.get('peft_type')!r}; only 'LORA' is served")
    for key, what in _REFUSED.items():
        if raw.get(key):
            raise AdapterError(f"{path}: {key!r} is {_shown(raw[key])}, which means {what}")
    _check_parameters(path, raw)
    if raw.get("bias", "none") != "none":
        raise AdapterError(f"{path}: 'bias' is {_shown(raw['bias'])}, which trains the base; use 'none'")
    start = raw.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_CHANGES_THE_BASE):
        raise AdapterError(
            f"{path}: 'init_lora_weights' is {_shown(start)}, which changes the base's weights; "
            "convert the adapter with PEFT's save_pretrained(path_initial_model_for_weight_conversion=…)"
        )
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(raw.get(key) or {}, dict):
            raise AdapterError(f"{path}: {key!r} is {_shown(raw[key])}; it must be an object")
        for pattern in raw.get(key) or {}:
            _check_pattern(path, key, pattern)
    rank = _number(path, "r", raw.get("r"))
    if rank < 1 or rank != int(rank):
        raise AdapterError(f"{path}: 'r' is {rank!r}; it must be a positive whole number")
    return AdapterConfig(
        path=path,
        raw=raw,
        rank=int(rank),
        alpha=_number(path, "lora_alpha", raw.get("lora_alpha")),
        is_rank_stabilised=bool(raw.get("use_rslora", False)),
        base=str(raw.get("base_model_name_or_path") or ""),
    )


def check_base(folder: Path, base: str, served: Sequence[str]) -> None:
    """Raise AdapterError unless `base`, which the adapter names, may be one of `served`.

    These are names and folders of one model; without any, or without a base, there is nothing to compare.
    """
    names = [_model_name(name) for name in served]
    if base and names and _model_name(base) not in names:
        raise AdapterError(
            f"{folder} names {base!r} as its base model, but this engine serves "
            f"{' in '.join(map(repr, names))}: on another model its answers are worth nothing. Load it on "
            "its base or, if both are the same model, with force: true"
        )


def _model_name(path: str) -> str:
    """The last part of a name or folder; the repository's name, for a folder in Hugging Face's cache."""
    cached = re.search(r"(?:^|/)models--(?:[^/]*--)?([^/]+)", path)
    return (cached[1] if cached else PurePath(path).name).casefold()


def _check_parameters(path: Path, raw: Mapping[str, Any]) -> None:
    """Accept `target_parameters` of stacked experts only, in the layout of current PEFT."""
    parameters = raw.get("target_parameters")
    if not parameters:
        return
    if not isinstance(parameters, list):
        raise AdapterError(f"{path}: 'target_parameters' is {_shown(parameters)}; it must be a list")
    for parameter in parameters:
        if not isinstance(parameter, str) or parameter.rpartition(".")[2] not in PARAMETERS:
            raise AdapterError(
                f"{path}: 'target_parameters' has {_shown(parameter)}; served are {' and '.join(PARAMETERS)} "
                "of stacked experts. Train without it"
            )
    version = raw.get("peft_version")
    found = re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", version if isinstance(version, str) else "")
    if found is None or tuple(int(part or 0) for part in found.groups()) < _EXPERTS_SINCE:
        raise AdapterError(
            f"{path}: 'peft_version' is {_shown(version)}; PEFT lays out what 'target_parameters' adds to "
            "experts differently since 0.19.1. Train with that version or a later one"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_regular_file(path, _MAX_CONFIG_BYTES + 1)
        raw = json.loads(content) if len(content) <= _MAX_CONFIG_BYTES else None
    except FileNotFoundError:
        raise AdapterError(
            f"{path} does not exist; give the folder of an adapter in PEFT's format "
            "(adapter_config.json, adapter_model.safetensors)"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{path} cannot be read as JSON ({error}); save the adapter again") from None
    if not isinstance(raw, dict):
        raise AdapterError(f"{path} holds no JSON object of up to 1 MiB; save the adapter again")
    return raw


def _number(path: Path, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise AdapterError(f"{path}: {key!r} is {_shown(value)}; it must be a number")
    return value


def _matches(pattern: str, module: str) -> bool:
    if module == pattern or module.endswith("." + pattern):
        return True
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def _check_pattern(path: Path, key: str, pattern: str) -> None:
    """Reject expressions with catastrophic backtracking: matching would block the whole process."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise AdapterError(
            f"{path}: {key!r} has the key {_shown(pattern)}, which is no regular expression; name a module"
        ) from None
    if (
        len(pattern) > _MAX_PATTERN_CHARS
        or len(_REPEATS.findall(pattern)) > _MAX_REPEATS
        or _REPEATED_GROUP.search(pattern)
    ):
        raise AdapterError(
            f"{path}: {key!r} has the key {_shown(pattern)}, an expression that may take long; write "
            f"up to {_MAX_PATTERN_CHARS} characters with up to {_MAX_REPEATS} repetitions and none of a group"
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
