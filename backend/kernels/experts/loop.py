"""Small experts on a CPU in one Numba loop: for a step's few tokens the overhead of calls dominates.

An active expert's weights are read once, tile by tile, for all its tokens. A token's sums do not depend on
the other tokens. Indices are unsigned: so LLVM knows that they do not wrap around, and vectorises.
"""

import numpy as np

from backend.kernels.compiled import compiled, inner
from backend.kernels.exponential import exponential
from backend.kernels.tiles import multiply

_U = np.uint64
_NOTHING, _ONE = np.float32(0), np.float32(1)


@inner
def _activate(wide, activated, own, count):
    """activated [count, I] = share · silu(gate) · up, of wide [count, 2 I] and the shares `own` [count]."""
    size = _U(len(activated) // len(own))
    for number in range(count):
        source, target, share = _U(2) * number * size, number * size, own[number]
        for i in range(size):
            gate = wide[source + i]
            activated[target + i] = share * wide[source + size + i] * gate / (_ONE + exponential(-gate))


@inner
def _tokens_of(expert, chosen, shares, tokens, own):
    """Fill `tokens` with the tokens that chose the expert and `own` with their shares; returns the count."""
    count = _U(0)
    for token in range(_U(chosen.shape[0])):
        for k in range(_U(chosen.shape[1])):
            if _U(chosen[token, k]) == expert:
                tokens[count], own[count] = token, shares[token, k]
                count += _U(1)
    return count


@inner
def _clear(values, count):
    for i in range(count):
        values[i] = _NOTHING


@compiled
def run_experts(x, chosen, shares, gate_up, down, y):
    """y [T, D] += Σ_k shares[t, k] · expert[chosen[t, k]](x[t]); all contiguous, x and y in float32.

    x [T, D]; chosen and shares [T, k]; gate_up [E, 2 I / 32, D, 32], gates before ups, and
    down [E, D / 32, I, 32] in tiles (see kernels.tiles).
    """
    num_tokens, features, width = x.shape[0], x.shape[1], down.shape[2]
    ups, downs = gate_up.reshape(-1), down.reshape(-1)
    taken, added = np.empty(x.size, np.float32), np.empty(x.size, np.float32)
    wide = np.empty(num_tokens * 2 * width, np.float32)
    activated = np.empty(num_tokens * width, np.float32)
    tokens, own = np.empty(num_tokens, np.uint64), np.empty(num_tokens, np.float32)
    for expert in range(gate_up.shape[0]):
        count = _tokens_of(_U(expert), chosen, shares, tokens, own)
        if count == _U(0):
            continue
        for number in range(count):
            for i in range(_U(features)):
                taken[number * _U(features) + i] = x[tokens[number], i]
        _clear(wide, count * _U(2 * width))
        multiply(ups, expert * features * 2 * width, (features, 2 * width), taken, wide, count)
        _activate(wide, activated, own, count)
        _clear(added, count * _U(features))
        multiply(downs, expert * width * features, (width, features), activated, added, count)
        for number in range(count):
            for i in range(_U(features)):
                y[tokens[number], i] += added[number * _U(features) + i]
