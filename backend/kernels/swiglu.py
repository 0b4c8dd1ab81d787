"""SwiGLU: silu(gate) * up (arXiv:2002.05202). In torch, on every device.

gate_up [T, 2 I], gate in the left half → [T, I], same dtype. Bound: memory, reads 2 T I, writes T I elements.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """Gate the right half by the left half; a new tensor."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
