"""The parts. Numba types NamedTuples field by field, so that they are passed as they are."""

import math

import numpy as np

from backend.kernels.compiled import compiled, inner
from backend.kernels.exponential import exponential
from backend.kernels.tiles import multiply

_U = np.uint64
_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST = np.float32(-1e30)  # of scores: finite as well when another one is taken from it


@inner
def norm(x, gains, eps, y):
    """y = x / sqrt(mean(x²) + eps) · gains, row by row; x itself where there are no gains."""
    for row in range(x.shape[0]):
        factor = _ONE
        if gains.shape[0] > 0:
            total = _ZERO
            for k in range(x.shape[1]):
                total += x[row, k] * x[row, k]
            factor = _ONE / math.sqrt(total / np.float32(x.shape[1]) + eps)
        for k in range(x.shape[1]):
            y[row, k] = x[row, k] * factor * (gains[k] if gains.shape[0] > 0 else _ONE)


@inner
def product(matrix, x):
    """x [B, K] · a matrix in tiles: [B, columns of the tiles], in a row; those that fill the last are 0."""
    columns = matrix.shape[1] * matrix.shape[3]
    y = np.zeros((x.shape[0], columns), np.float32)
    multiply(matrix.reshape(-1), 0, (x.shape[1], columns), x.reshape(-1), y.reshape(-1), x.shape[0])
    return y


@compiled
def project(weights, x, y):
    """y [B, N] = norm(x) [B, K] · the matrix."""
    normed = np.empty_like(x)
    norm(x, weights.norm, weights.eps, normed)
    y[:] = product(weights.matrix, normed)[:, : y.shape[1]]


@inner
def unit(head, floor):
    """1 / sqrt(x² + floor) of a query or key x."""
    total = floor
    for k in range(head.shape[0]):
        total += head[k] * head[k]
    return _ONE / math.sqrt(total)


@inner
def rotate(head, factor, cos, signed_sin):
    """Turn one query or key in place, times a factor."""
    half = head.shape[0] // 2
    for k in range(half):
        low, high = head[k] * factor, head[k + half] * factor
        head[k] = low * cos[k] + high * signed_sin[k]
        head[k + half] = high * cos[k + half] + low * signed_sin[k + half]


@inner
def _attend(query, keys_values, head, hidden, scale, scores, mixed):
    """One query over columns [end, 2 * kv_heads, head_dim]; those with `hidden` < 0 are not seen."""
    size, end = _U(query.shape[0]), _U(scores.shape[0])
    step = _U(keys_values.shape[1]) * size
    flat = keys_values.reshape(-1)
    key, value = _U(head) * size, _U(head) * size + step // _U(2)
    top = _LOWEST
    for place in range(end):
        if hidden.shape[0] > 0 and hidden[place] < _ZERO:
            scores[place] = _LOWEST
            key += step
            continue
        score = _ZERO
        for k in range(size):
            score += query[k] * flat[key + k]
        key += step
        score *= scale
        scores[place] = score
        top = max(top, score)
    total = _ZERO
    for place in range(end):
        scores[place] = exponential(scores[place] - top)
        total += scores[place]
    mixed[:] = _ZERO
    for place in range(end):
        if scores[place] > _ZERO:
            weight = scores[place] / total
            for k in range(size):
                mixed[k] += weight * flat[value + k]
        value += step


@compiled
def attend(weights, x, cos, signed_sin, memory, end, hidden, y):
    """y [B, D] = attention of norm(x) over the first `end` columns of memory [B, C, 2 * kv_heads, head_dim].

    Keys and values of x are written to the last of these columns before.
    cos and signed_sin [B, heads that turn, head_dim]; hidden [0 or 1 or B, end] < 0: not seen.
    """
    count, num_kv, size = x.shape[0], memory.shape[2] // 2, memory.shape[3]
    num_queries = weights.num_queries
    num_turned = num_queries + num_kv
    normed = np.empty_like(x)
    norm(x, weights.norm, weights.eps, normed)
    heads = np.ascontiguousarray(product(weights.matrix, normed)[:, : weights.num_heads * size])
    by_head = heads.reshape(count, weights.num_heads, size)
    mixed = np.empty((count, num_queries * size), np.float32)
    scores = np.empty(end, np.float32)
    scale = _ONE / np.float32(math.sqrt(size))
    for row in range(count):
        for head in range(num_turned):
            factor = unit(by_head[row, head], weights.floor)
            rotate(by_head[row, head], factor, cos[row, head], signed_sin[row, head])
        memory[row, end - 1] = by_head[row, num_queries:]
        own = hidden[row if hidden.shape[0] > 1 else 0] if hidden.shape[0] > 0 else hidden.reshape(-1)
        for head in range(num_queries):
            shared = head // (num_queries // num_kv)
            target = mixed[row, head * size : (head + 1) * size]
            _attend(by_head[row, head], memory[row], shared, own, scale, scores, target)
    y[:] = product(weights.out, mixed)[:, : y.shape[1]]


@inner
def fed_forward(weights, x, y):
    """See feed_forward."""
    width = weights.down.shape[2]
    normed = np.empty_like(x)
    norm(x, weights.norm, weights.eps, normed)
    wide = product(weights.gate_up, normed)
    gated = np.empty((x.shape[0], width), np.float32)
    for row in range(x.shape[0]):
        for k in range(width):
            gate = wide[row, k]
            gated[row, k] = gate / (_ONE + exponential(-gate)) * wide[row, width + k]
    added = product(weights.down, gated)
    for row in range(x.shape[0]):
        for k in range(x.shape[1]):
            normed[row, k] = x[row, k] + added[row, k]
    norm(normed, weights.last_norm, weights.eps, y)


@compiled
def feed_forward(weights, x, y):
    """y [B, D] = last norm of x + down(silu(gate) · up) of norm(x)."""
    fed_forward(weights, x, y)


@inner
def guessed(weights, x, vocab_size, tokens, likely):
    """See likeliest."""
    normed = np.empty_like(x)
    norm(x, weights.norm, weights.eps, normed)
    logits = product(weights.matrix, normed)
    for row in range(x.shape[0]):
        best = 0
        for token in range(1, vocab_size):
            if logits[row, token] > logits[row, best]:
                best = token
        total = _ZERO
        for token in range(vocab_size):
            total += exponential(logits[row, token] - logits[row, best])
        tokens[row], likely[row] = best, _ONE / total


@compiled
def likeliest(weights, x, vocab_size, tokens, likely):
    """The likeliest token by each row [B, D], and how likely it is."""
    guessed(weights, x, vocab_size, tokens, likely)
