"""Chooses device, dtypes and weight layout by configuration, checkpoint and hardware."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from backend.config import EngineConfig, ModelConfig
from backend.errors import CheckpointError
from backend.kernels.device import uses_triton
from backend.kernels.linear import WeightLayout, paired
from backend.kv.states import StateLayout
from backend.kv.storage import KVLayout, KVShape
from backend.models.families import FAMILIES

logger = logging.getLogger(__name__)

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""One is there where a build of torch for it would find a GPU."""

_SMALL_MATRIX = 1 << 17
"""Elements. For smaller matrices torch's threads spend more time on synchronisation than on arithmetic, and
take cores from other work."""

_SMALL_KV_BYTES = 1 << 16
"""Up to this many bytes per token in float32, converting keys and values costs more than it saves."""

_KV_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class Precision:
    """Device and dtypes of a model."""

    device: torch.device
    compute: torch.dtype  # activations
    weights: WeightLayout
    kv: torch.dtype  # of stored keys and values

    def kv_layout(self, model: ModelConfig) -> KVLayout:
        """The shape of the model's KV memory."""
        own = model.attentions
        shapes = tuple(
            KVShape(
                *(each.num_kv_heads, each.head_dim, each.kv_source, 2 if each.latent is None else 1),
                is_windowed=each.window is not None,
            )
            for each in own
        )
        states = StateLayout(model.states, self.device) if model.states else None
        return KVLayout(shapes, self.kv, self.device, states)


def choose_precision(config: EngineConfig, model: ModelConfig, stored: torch.dtype) -> Precision:
    """`stored` is the checkpoint's dtype. Raises CheckpointError when CUDA is configured and not available.

    "auto" never computes in lower precision than the checkpoint is stored: float32 stays float32. On a GPU 16
    bits are computed as they are stored, bfloat16 in float16 where it lacks that. CPUs compute in float32
    over 16-bit weights, keys and values, as they are bound by memory bandwidth; products round their input to
    bfloat16 where the processor multiplies that, but in small models, where that gains little.
    """
    precision = _automatic(config, model, stored)
    return replace(precision, kv=_KV_DTYPES.get(config.kv_dtype, precision.kv))


def _automatic(config: EngineConfig, model: ModelConfig, stored: torch.dtype) -> Precision:
    device = _device(config)
    narrow = config.dtype == "auto" and stored != torch.float32
    if device.type == "cuda":
        dtype = _card_dtype(config, model, stored)
        return Precision(device, dtype, "plain", dtype)
    if config.dtype == "bfloat16":
        return Precision(device, torch.bfloat16, "plain", torch.bfloat16)
    if uses_triton(torch.empty(0)):
        return Precision(device, torch.float32, "plain", torch.float32)
    if narrow:
        heads = sum(attention.num_kv_heads * attention.head_dim for attention in model.attentions)
        token_bytes = 2 * heads * torch.float32.itemsize
        kv = torch.float32 if token_bytes <= _SMALL_KV_BYTES else torch.bfloat16
        weights: WeightLayout = "bf16" if paired.is_available() and not is_small(model) else "half"
        return Precision(device, torch.float32, weights, kv)
    return Precision(device, torch.float32, "packed", torch.float32)


def _card_dtype(config: EngineConfig, model: ModelConfig, stored: torch.dtype) -> torch.dtype:
    """What the current GPU computes in. Raises CheckpointError where that is configured and it cannot."""
    is_auto = config.dtype == "auto"
    if config.dtype == "float32" or (is_auto and stored is torch.float32):
        return torch.float32
    overflows = FAMILIES[model.architecture].overflows_float16
    if is_auto and stored is torch.float16 and not overflows:
        return torch.float16
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    if not is_auto:
        raise CheckpointError(
            f"model {config.model!r} is configured for dtype 'bfloat16', which its GPU does not compute in; "
            "leave dtype out, or choose another device"
        )
    found = torch.float32 if overflows else torch.float16
    logger.warning(
        "model %r is computed in %s: its GPU does not compute in bfloat16%s",
        *(config.model, str(found).removeprefix("torch.")),
        ", and its family needs numbers beyond float16's" if overflows else ", as the checkpoint is stored",
    )
    return found


def is_small(model: ModelConfig) -> bool:
    """Whether one thread computes the model's widest layer the fastest."""
    widest = max(layer.block.intermediate_size for layer in model.layers if layer.feed_forward is not None)
    return model.hidden_size * widest < _SMALL_MATRIX


def _device(config: EngineConfig) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if config.device == "auto" and not has_cuda and any(map(Path.exists, DRIVERS)):
        logger.warning(
            "model %r is computed on the CPU: a GPU's driver is here, but torch %s finds no GPU; install a "
            "CUDA build of torch, or set device to 'cpu'",
            *(config.model, torch.__version__),
        )
    if config.device == "cpu" or (config.device == "auto" and not has_cuda):
        return torch.device("cpu")
    device = torch.device("cuda" if config.device == "auto" else config.device)
    if not has_cuda:
        raise CheckpointError(
            f"model {config.model!r} is configured for device {config.device!r}, but torch finds none here; "
            "install a CUDA build of torch and the driver, or set device to 'cpu' or 'auto'"
        )
    number, count = config.device.removeprefix("cuda:"), torch.cuda.device_count()
    if not number.isdigit():
        return device
    if int(number) >= count:
        raise CheckpointError(
            f"model {config.model!r} is configured for device {config.device!r}, but torch finds "
            f"'cuda:0' to 'cuda:{count - 1}' here"
        )
    torch.cuda.set_device(device)  # kernels in Triton are launched on the current one
    return device
