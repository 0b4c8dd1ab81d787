"""Attention on a CPU: one loop over pages (loop.py), shared by torch's threads.

A thread takes a piece of a sequence and some of its key heads. What else is computed does not change a
query's result.
"""

from __future__ import annotations

import torch
from llvmlite.binding import get_host_cpu_features
from torch import Tensor

from backend.kernels.paged_attention import loop
from backend.kernels.paged_attention.plan import Looped

_LOOPS = {
    torch.float32: loop.attend_float32,
    torch.bfloat16: loop.attend_bfloat16,
    torch.int8: loop.attend_int8,
}
if get_host_cpu_features().get("f16c"):  # without it LLVM calls a function that is nowhere: an abort
    _LOOPS[torch.float8_e4m3fn] = loop.attend_float8

_LEAST_ELEMENTS = 1 << 18
"""Keys and values that are worth a second thread: about a tenth of a millisecond."""


def is_supported(q: Tensor, kv: Tensor) -> bool:
    """Whether the loop reads pages of this type; it takes elements in words of 32 bits."""
    is_whole = q.shape[-1] * kv.dtype.itemsize % 4 == 0
    return not q.is_cuda and q.dtype is torch.float32 and kv.dtype in _LOOPS and is_whole


def attend(
    result: Tensor, q: Tensor, kv: Tensor, plan: Looped, page_table: Tensor, sinks: Tensor | None = None
) -> None:
    """Write the rows of the plan's pieces into `result` [T, Hq * D], contiguous; `sinks` [Hq] float32.

    Where `kv` has keys alone, they are the values as well.
    """
    assert kv.is_contiguous() and result.is_contiguous() and page_table.is_contiguous()
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = kv.shape[3]
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        q = q.contiguous()
    count = plan.sequences.shape[1]
    threads = torch.get_num_threads()
    if plan.num_slots * 2 * num_kv_heads * head_dim < _LEAST_ELEMENTS:
        threads = 1
    heads = num_kv_heads
    if threads > 1:
        heads = max(1, min(heads, heads * count // (2 * threads)))  # two parts for each thread
    _LOOPS[kv.dtype](
        (
            0,
            count * -(-num_kv_heads // heads),
            heads,
            q.data_ptr(),
            q.stride(0),
            kv.data_ptr(),
            result.data_ptr(),
            num_heads,
            num_kv_heads,
            head_dim,
            page_table.data_ptr(),
            page_table.shape[1],
            plan.sequences.data_ptr(),
            count,
            plan.seen.data_ptr(),
            0 if sinks is None else sinks.data_ptr(),
            (kv.shape[2] - 1) * kv.stride(2) * kv.itemsize,
        ),
        threads,
    )
