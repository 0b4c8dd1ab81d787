"""The gated delta rule in torch: a block of tokens is the solution of one triangular system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import DeltaSpec
from backend.kernels.recurrent import Chunks, State, aligned_blocks, scan_chunks
from backend.kernels.short_conv.reference import convolve

if TYPE_CHECKING:
    from backend.kernels.gated_delta import DeltaWeights

_EPS = 1e-6  # of the lengths of q and k


def gated_delta(
    inputs: Tensor, weights: DeltaWeights, state: State, chunks: Chunks, spec: DeltaSpec
) -> Tensor:
    """One sequence after the other."""

    def scan(seen: Tensor, recurrent: Tensor, first: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
        mixed = _mix(seen, weights, spec)
        end = first + len(seen) - weights.conv.shape[1] + 1
        _, replayed = _scan(mixed, recurrent, first, start, first)
        output, scanned = _scan(mixed, replayed, start, end, first)
        return output, replayed, scanned

    return scan_chunks(inputs, state, chunks, weights.conv.shape[1], scan)


def _mix(seen: Tensor, weights: DeltaWeights, spec: DeltaSpec) -> tuple[Tensor, ...]:
    """q, k, v [Hv, n, D], g and β [Hv, n] of all rows behind the convolution's window."""
    taps, count = weights.conv.shape[1], len(seen) - weights.conv.shape[1] + 1
    channels, heads = len(weights.conv), spec.num_value_heads
    mixed = F.silu(convolve(seen[:, :channels], weights.conv, 0.0))
    keys = spec.num_key_heads * spec.key_head_dim
    query, key, value = torch.split(mixed, [keys, keys, heads * spec.value_head_dim], dim=1)
    a, b = torch.split(seen[taps - 1 :, channels:], heads, dim=1)
    sharing = heads // spec.num_key_heads

    def unit(x: Tensor) -> Tensor:
        x = x.view(count, spec.num_key_heads, spec.key_head_dim).transpose(0, 1)
        x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)
        return x.repeat_interleave(sharing, dim=0)

    value = value.view(count, heads, spec.value_head_dim).transpose(0, 1)
    decay = weights.rate * F.softplus(a + weights.bias)
    return unit(query) * spec.key_head_dim**-0.5, unit(key), value, decay.T, b.sigmoid().T


def _scan(
    mixed: tuple[Tensor, ...], state: Tensor, begin: int, end: int, first: int
) -> tuple[Tensor, Tensor]:
    """Outputs [n, Hv, Dv] of positions from `begin` to `end`, and the state after them.

    `mixed` begins at position `first`.
    """
    outputs = [state.new_empty(0, state.shape[0], state.shape[2])]
    for start, stop in aligned_blocks(begin, end):
        query, key, value, decay, beta = (each[:, start - first : stop - first] for each in mixed)
        total = decay.cumsum(1)
        between = (total[:, :, None] - total[:, None]).tril().exp().tril()  # from token j's decay on to i's
        system = (beta[:, :, None] * (key @ key.mT) * between).tril(-1)
        wanted = beta[:, :, None] * (value - total.exp()[:, :, None] * (key @ state))
        update = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        output = total.exp()[:, :, None] * (query @ state) + ((query @ key.mT) * between) @ update
        outputs.append(output.transpose(0, 1))
        left = (total[:, -1:] - total).exp()[:, :, None]
        state = total[:, -1].exp()[:, None, None] * state + (key * left).mT @ update
    return torch.cat(outputs), state
