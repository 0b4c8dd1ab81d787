"""Reads an adapter from a folder in PEFT's format and checks every tensor against the base model.

Safetensors only. Files are read whole, never memory-mapped: a file that shrinks while mapped crashes the
process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from backend.errors import AdapterError
from backend.identifiers import text_name
from backend.kernels.lora import Factors
from backend.layers.linear import LinearPart
from backend.lora.adapter_config import AdapterConfig, read_config
from backend.lora.bounded_reader import read_regular_file
from backend.lora.experts import Pair, StackedExperts

WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_BASE_WEIGHT = ".base_layer.weight"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_HEADER_BYTES = 1 << 22
"""Space for names and shapes in the largest file that the base model allows."""

Sites = Mapping[str, LinearPart]
"""What adapters can change: the module's name in the checkpoint → its projection in our model."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter in host memory, in the dtype of computation, with the scale multiplied into `up`."""

    digest: str  # SHA-256 over config and tensors
    base: str
    rank: int  # the highest of its modules
    factors: dict[str, Factors]  # module → (down [rank, K], up [rank, N])
    num_bytes: int


def read_adapter(folder: Path, sites: Sites, max_rank: int, dtype: torch.dtype) -> Adapter:
    """The adapter in `folder`. Raises AdapterError: file, tensor, what is wrong and what to do."""
    config = read_config(folder)
    path = folder / WEIGHTS_FILE
    tensors = _without_base(path, _load(path, sites, max_rank), sites, config.base)
    pairs = _pairs(path, tensors, sites, config.base)
    factors = {
        module: _factors(path, config, module, pair, (sites[module], max_rank, dtype))
        for module, pair in pairs.items()
    }
    return Adapter(
        digest=_digest(config, tensors),
        base=config.base,
        rank=max(len(down) for down, _ in factors.values()),
        factors=factors,
        num_bytes=sum(down.nbytes + up.nbytes for down, up in factors.values()),
    )


def _load(path: Path, sites: Sites, max_rank: int) -> dict[str, Tensor]:
    limit = sum((s.in_features + s.columns) * max_rank * 4 for s in sites.values()) + _HEADER_BYTES
    limit += max(s.in_features * s.columns * 4 for s in sites.values())  # base weights of the head
    try:
        content = read_regular_file(path, limit + 1)
    except FileNotFoundError:
        others = sorted(p.name for p in path.parent.glob("adapter_model.*"))
        found = f" ({', '.join(others)} is not read)" if others else ""
        raise AdapterError(
            f"{path} does not exist{found}; save the adapter with safe_serialization=True"
        ) from None
    except OSError as error:
        raise AdapterError(f"{path} cannot be read ({error.strerror}); check the file") from None
    if len(content) > limit:
        raise AdapterError(
            f"{path} is larger than the {limit} bytes of an adapter of rank {max_rank} for this base; "
            "raise max_adapter_rank, or train a smaller rank"
        )
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise AdapterError(f"{path} is not a complete safetensors file ({error}); save it again") from None


def _without_base(path: Path, tensors: Mapping[str, Tensor], sites: Sites, base: str) -> dict[str, Tensor]:
    """Drop base weights: PEFT saves the head's beside an adapter of the head."""
    kept = dict(tensors)
    for name, tensor in tensors.items():
        site = sites.get(text_name(name.removeprefix(_PREFIX)).removesuffix(_BASE_WEIGHT))
        if site is not None and name.endswith(_BASE_WEIGHT):
            _check_shape(path, name, tensor, (site.columns, site.in_features), base)
            del kept[name]
    return kept


def _pairs(path: Path, tensors: Mapping[str, Tensor], sites: Sites, base: str) -> dict[str, Pair]:
    """Both matrices of each module; those of stacked experts are split by expert."""
    experts = StackedExperts(sites)
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        match = _TENSOR.fullmatch(text_name(name.removeprefix(_PREFIX)))
        module = match["module"] if match else ""
        if match is None or not (module in sites or experts.has(module)):
            served = sorted({module.rpartition(".")[2] for module in sites})
            trained_on = f" (the adapter names {base!r} as its base)" if base else ""
            raise AdapterError(
                f"{path}: the base model has no place for the tensor {name[:200]!r}{trained_on}; "
                f"served are lora_A.weight and lora_B.weight of its modules {', '.join(served)}"
            )
        if tensor.dtype not in _FLOATS:
            raise AdapterError(f"{path}: {name!r} is {tensor.dtype}; save it in float32, bfloat16 or float16")
        sides.setdefault(module, {})[match["side"]] = tensor
    for module, found in sides.items():
        if len(found) < 2:
            missing = "B" if "A" in found else "A"
            raise AdapterError(f"{path}: {module!r} has no lora_{missing}.weight; save the adapter again")
    if not sides:
        raise AdapterError(f"{path} holds no tensor; save the adapter again")
    pairs: dict[str, Pair] = {}
    for module, found in sides.items():
        down, up = found["A"], found["B"]
        own = {module: Pair(down, up, module)} if module in sites else experts.split(module, down, up)
        if not own or own.keys() & pairs.keys():
            raise AdapterError(
                f"{path}: {module!r} has shapes {list(down.shape)} and {list(up.shape)}, which fit no "
                "parameter of the base model's experts, or one that has matrices already; load it on the "
                "base that it was trained on"
            )
        pairs |= own
    return pairs


def _factors(
    path: Path,
    config: AdapterConfig,
    module: str,
    pair: Pair,
    place: tuple[LinearPart, int, torch.dtype],
) -> Factors:
    site, max_rank, dtype = place
    rank = config.rank_of(pair.key)
    if rank > max_rank:
        raise AdapterError(
            f"{config.path}: {module!r} has rank {rank}, and this engine takes up to {max_rank}; raise "
            "max_adapter_rank, or train a smaller rank"
        )
    wanted = ((rank, site.in_features), (site.columns, rank))
    down, up = pair.down, pair.up
    for side, tensor, shape in zip("AB", (down, up), wanted, strict=True):
        _check_shape(path, f"{module}.lora_{side}.weight", tensor, shape, config.base)
    up = up if site.order is None else up[site.order]
    scaled = (up.float() * config.scale_of(pair.key, rank)).T.to(dtype).contiguous()
    kept = down.to(dtype).contiguous()
    _check_finite(path, f"{module}.lora_A.weight", kept)
    if not _is_finite(scaled):
        _check_finite(path, f"{module}.lora_B.weight", up.to(dtype))
        key, alpha = config.alpha_of(pair.key)
        raise AdapterError(
            f"{config.path}: {key!r} is {alpha!r}, with which '{module}.lora_B.weight' holds a number that "
            f"is not finite in {dtype}; write the alpha that it was trained with"
        )
    return kept, scaled


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _check_finite(path: Path, name: str, tensor: Tensor) -> None:
    if not _is_finite(tensor):
        raise AdapterError(
            f"{path}: {name!r} holds a number that is not finite in {tensor.dtype}; train it again"
        )


def _check_shape(path: Path, name: str, tensor: Tensor, shape: tuple[int, int], base: str) -> None:
    if tuple(tensor.shape) != shape:
        trained_on = f" {base!r}" if base else ""
        raise AdapterError(
            f"{path}: {name!r} has shape {list(tensor.shape)}, but rank and base model imply "
            f"{list(shape)}; load it on the base that it was trained on{trained_on}"
        )


def _digest(config: AdapterConfig, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(config.canonical)
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
