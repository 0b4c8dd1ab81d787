"""Queries, keys and values on their way into attention: norm, rotation, and the store of keys and values.

heads [T, Hq + 2 Hkv, D]: queries, keys and values; `memory` [S, 2 Hkv, W]: one layer's pages by slot, in a
dtype of its own; slots [T] int64. Norm and rotation: kernels/rotary; rows in 8 bits: quantised_kv.py.
Bound: memory, reads every element of heads once, and writes it once.
"""

from __future__ import annotations

from torch import Tensor

from backend.kernels.device import uses_triton
from backend.kernels.kv_write.reference import store
from backend.kernels.rotary import Angles, rotate

__all__ = ["kv_write", "store"]


def kv_write(
    heads: Tensor,
    angles: Angles,
    slots: Tensor,
    memory: Tensor,
    weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Rotate the queries in place; store the rotated keys, and the values. What `heads` has of them is lost.

    With a `weight` [Hq + Hkv, D], queries and keys are normalised before.
    """
    num_rotated = heads.shape[1] - memory.shape[1] // 2
    if uses_triton(heads) and heads.shape[2] % 2 == 0:
        assert heads.is_contiguous() and memory.is_contiguous() and angles.table.is_contiguous()
        assert weight is None or (weight.shape[0] == num_rotated and weight.is_contiguous())
        from backend.kernels.kv_write.kernel import kv_write as on_gpu

        on_gpu(heads, angles, slots, memory, weight, eps)
        return
    rotate(heads[:, :num_rotated], angles, weight, eps)
    store(heads[:, num_rotated - memory.shape[1] // 2 :], slots, memory)
