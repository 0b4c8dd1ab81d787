"""The tensors of KV memory: one per layer, pages of 16 slots, key and value of a slot side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.types import PAGE_TOKENS

_CPU_SHARE, _CPU_CAP_BYTES = 0.25, 1 << 30
_CUDA_SHARE = 0.85
_MIN_PAGES = 16
_CACHE_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one model's KV memory, whatever the number of pages."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def page_bytes(self) -> int:
        """Memory of one page over all layers, keys and values."""
        return self.num_layers * PAGE_TOKENS * 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KVStorage:
    """Keys and values by layer: [num_pages, 16, 2, kv_heads, head_dim]; index 0 of the third axis is the key.

    Pages start as zeros and only ever hold finite numbers: attention multiplies masked slots by 0, and
    0 * NaN would leak from one sequence into another.
    """

    __slots__ = ("_slots", "layers", "layout")

    def __init__(self, layout: KVLayout, num_pages: int) -> None:
        self.layout = layout
        shape = (num_pages, PAGE_TOKENS, 2, layout.num_kv_heads, layout.head_dim)
        self.layers = [_zeros(shape, layout) for _ in range(layout.num_layers)]
        self._slots: list[Tensor] = [layer.flatten(0, 1).flatten(1, 2) for layer in self.layers]

    @property
    def num_pages(self) -> int:
        """Pages that exist, free or not."""
        return int(self.layers[0].shape[0])

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store `keys_values` [T, 2 * kv_heads, head_dim], keys first, at `slots` [T] of one layer."""
        target = self._slots[layer]
        target.index_copy_(0, slots, keys_values.to(target.dtype))


def _zeros(shape: tuple[int, ...], layout: KVLayout) -> Tensor:
    """Zeros that on CPU cost no memory before they are written: numpy leaves them to the kernel."""
    if layout.device.type != "cpu":
        return torch.zeros(shape, dtype=layout.dtype, device=layout.device)
    num_bytes = math.prod(shape) * layout.dtype.itemsize
    raw = np.zeros(num_bytes + _CACHE_LINE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE_BYTES
    return torch.from_numpy(raw[start : start + num_bytes]).view(layout.dtype).view(shape)


class HasKVLayout(Protocol):
    """A loaded model, as far as memory is concerned."""

    @property
    def kv_layout(self) -> KVLayout:
        """The shape of its KV memory."""
        ...


def num_pages_for(config: EngineConfig, model: HasKVLayout) -> int:
    """How many pages to allocate once the weights are loaded: as configured, or a share of free memory.

    Raises CheckpointError when not even a short sequence would fit.
    """
    if config.num_pages is not None:
        return config.num_pages
    layout = model.kv_layout
    budget = _free_share(layout.device) if config.kv_cache_bytes is None else config.kv_cache_bytes
    num_pages = budget // layout.page_bytes
    if num_pages < _MIN_PAGES:
        raise CheckpointError(
            f"KV memory of {budget} bytes holds {num_pages} pages of model {config.model!r}, at least "
            f"{_MIN_PAGES} ({_MIN_PAGES * layout.page_bytes} bytes) are needed; "
            "free memory or raise kv_cache_bytes"
        )
    return num_pages


def _free_share(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _CUDA_SHARE)
    return min(int(_free_cpu_bytes() * _CPU_SHARE), _CPU_CAP_BYTES)


def _free_cpu_bytes() -> int:
    """Memory that this process may still take: the machine's, or the container's where that is less."""
    free = [_CPU_CAP_BYTES * 4]  # where the system does not say, such as outside Linux
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = [int(fields["MemAvailable"].split()[0]) * 1024]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        free.append(max(0, int(text) - int(used.read_text())))
    return min(free)
