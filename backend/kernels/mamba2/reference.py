"""Mamba-2 in torch, in blocks of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import MambaSpec
from backend.kernels.recurrent import Chunks, State, aligned_blocks, scan_chunks
from backend.kernels.short_conv.reference import convolve

if TYPE_CHECKING:
    from backend.kernels.mamba2 import MambaWeights


def mamba2(inputs: Tensor, weights: MambaWeights, state: State, chunks: Chunks, spec: MambaSpec) -> Tensor:
    """One sequence after the other."""
    taps = weights.conv.shape[1]

    def scan(seen: Tensor, recurrent: Tensor, first: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
        mixed, end = _mix(seen, weights, spec), first + len(seen) - taps + 1
        _, replayed = _scan(mixed, recurrent, first, start, first)
        output, scanned = _scan(mixed, replayed, start, end, first)
        skipped = mixed[0][:, start - first :].transpose(0, 1) * weights.skip[:, None]
        return output + skipped, replayed, scanned

    return scan_chunks(inputs, state, chunks, taps, scan)


def _mix(seen: Tensor, weights: MambaWeights, spec: MambaSpec) -> tuple[Tensor, ...]:
    """x [H, n, P], B and C [H, n, N], Δ [H, n] and the logarithms of decays of all rows behind the window."""
    channels, heads, groups = len(weights.conv), spec.num_heads, spec.num_groups
    mixed = F.silu(convolve(seen[:, :channels], weights.conv, weights.conv_bias))
    x, b, c = torch.split(mixed, [heads * spec.head_dim, *(groups * spec.state_size,) * 2], dim=1)
    b, c = (
        each.view(len(mixed), groups, -1).transpose(0, 1).repeat_interleave(heads // groups, 0)
        for each in (b, c)
    )
    steps = F.softplus(seen[weights.conv.shape[1] - 1 :, channels:] + weights.bias)
    steps = steps.clamp(*spec.time_step_limits).T
    return x.view(len(mixed), heads, -1).transpose(0, 1), b, c, steps, steps * weights.rate[:, None]


def _scan(
    mixed: tuple[Tensor, ...], state: Tensor, begin: int, end: int, first: int
) -> tuple[Tensor, Tensor]:
    """Outputs [n, H, P] of positions from `begin` to `end`, and the state [H, N, P] after them.

    `mixed` begins at position `first`.
    """
    outputs = [state.new_empty(0, state.shape[0], state.shape[2])]
    for start, stop in aligned_blocks(begin, end):
        x, b, c, steps, decay = (each[:, start - first : stop - first] for each in mixed)
        total = decay.cumsum(1)
        between = (total[:, :, None] - total[:, None]).tril().exp().tril()  # from token j's decay on to i's
        added = steps[:, :, None] * x
        outputs.append(
            (total.exp()[:, :, None] * (c @ state) + ((c @ b.mT) * between) @ added).transpose(0, 1)
        )
        left = (total[:, -1:] - total).exp()[:, :, None]
        state = total[:, -1].exp()[:, None, None] * state + (b * left).mT @ added
    return torch.cat(outputs), state
