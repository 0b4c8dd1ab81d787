"""The loops. Numba types NamedTuples field by field, so that they are passed as they are."""

import math

import numpy as np

from backend.kernels.compiled import compiled, inner
from backend.kernels.exponential import exponential
from backend.kernels.tiles import multiply

_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST = np.finfo(np.float32).min
_U = np.uint64


@inner
def _multiply(matrices, biases, layer, x, y):
    """y [R, N] = x [R, K] · one of the matrices, in tiles, + its bias."""
    num_rows, num_columns = y.shape
    for row in range(num_rows):
        for column in range(num_columns):
            y[row, column] = biases[layer, column]
    shape = (x.shape[1], num_columns)
    begin = layer * shape[0] * shape[1]
    multiply(matrices.reshape(-1), begin, shape, x.reshape(-1), y.reshape(-1), np.uint64(num_rows))


@inner
def _dot(x, y):
    total = _ZERO
    for k in range(x.shape[0]):
        total += x[k] * y[k]
    return total


@inner
def _norm(x, gains, eps, y):
    """Rows of x over the root of their mean square, times the gains."""
    for row in range(x.shape[0]):
        source, target = x[row], y[row]
        factor = _ONE / math.sqrt(_dot(source, source) / np.float32(source.shape[0]) + eps)
        for k in range(source.shape[0]):
            target[k] = source[k] * factor * gains[k]


@inner
def _rotate(head, gains, cos, signed_sin, eps, is_normed):
    """Norm, weight and rotate one query or key in place."""
    size = head.shape[0]
    factor = _ONE
    if is_normed:
        factor = _ONE / math.sqrt(_dot(head, head) / np.float32(size) + eps)
    half = size // 2
    for k in range(half):
        low, high = head[k] * factor * gains[k], head[k + half] * factor * gains[k + half]
        head[k] = low * cos[k] + high * signed_sin[k]
        head[k + half] = high * cos[k + half] + low * signed_sin[k + half]


@inner
def _store(heads, num_queries, target):
    """Keys and values of one token [heads, head_dim] into its slot [2, kv_heads, head_dim]."""
    count = target.shape[1]
    for i in range(count):
        for k in range(target.shape[2]):
            target[0, i, k] = heads[num_queries + i, k]
            target[1, i, k] = heads[num_queries + count + i, k]


@inner
def _attend(query, memory, head, pages, num_seen, scores, mixed):
    """One head's query over the first tokens of a sequence; `memory` [pages, 16, 2, kv_heads, head_dim]."""
    size = _U(query.shape[0])
    step = _U(memory.shape[3]) * size  # from keys to values, and half of what a token takes
    flat = memory.reshape(-1)
    first = _U(head) * size
    top = _LOWEST
    for place in range(_U(num_seen)):
        key = _token(pages, place) * _U(2) * step + first
        score = _ZERO
        for k in range(size):
            score += query[k] * flat[key + k]
        scores[place] = score
        top = max(top, score)
    total = _ZERO
    for place in range(num_seen):
        scores[place] = exponential(scores[place] - top)
        total += scores[place]
    mixed[:] = _ZERO
    for place in range(_U(num_seen)):
        if scores[place] > _ZERO:
            value = _token(pages, place) * _U(2) * step + step + first
            weight = scores[place] / total
            for k in range(size):
                mixed[k] += weight * flat[value + k]


@inner
def _token(pages, place):
    """Where a token of the sequence lies in memory."""
    return _U(pages[place // _U(16)]) * _U(16) + place % _U(16)


@inner
def _gate(gate_up, gated):
    """silu(gate) · up of each row."""
    size = gated.shape[1]
    for row in range(gated.shape[0]):
        source, target = gate_up[row], gated[row]
        for k in range(size):
            target[k] = source[k] / (_ONE + exponential(-source[k])) * source[k + size]


@inner
def _attention(weights, layer, memory, pages, sequences, positions, heads, mixed):
    """From the projections [R, heads, head_dim] of all rows to what they see [R, heads, head_dim]."""
    num_rotated, num_queries = weights.gains.shape[1], mixed.shape[1]
    for row in range(heads.shape[0]):
        position, own = positions[row], pages[sequences[row]]
        cos, signed_sin = weights.cos[position], weights.signed_sin[position]
        for head in range(num_rotated):
            gains = weights.gains[layer, head]
            _rotate(heads[row, head], gains, cos, signed_sin, weights.eps, weights.norms_heads)
        _store(heads[row], num_queries, memory[own[position // 16], position % 16])
    shared = num_queries // (num_rotated - num_queries)
    scores = np.empty(pages.shape[1] * 16, dtype=np.float32)
    for row in range(heads.shape[0]):
        seen, own = positions[row] + 1, pages[sequences[row]]
        for head in range(num_queries):
            _attend(heads[row, head], memory, head // shared, own, seen, scores, mixed[row, head])


@inner
def _forward(weights, memory, pages, sequences, positions, x):
    """Add all layers to x [R, D]: tokens at `positions` of their sequences, of which no row misses one."""
    num_rows, head_dim = x.shape[0], weights.cos.shape[1]
    width = weights.out.shape[2]
    num_heads = 2 * weights.gains.shape[1] - width // head_dim  # keys' heads count twice: values have as many
    normed = np.empty_like(x)
    added = np.empty((num_rows, weights.out_bias.shape[1]), dtype=np.float32)
    projected = np.empty((num_rows, weights.qkv_bias.shape[1]), dtype=np.float32)
    heads = np.empty((num_rows, num_heads, head_dim), dtype=np.float32)
    mixed = np.empty((num_rows, width), dtype=np.float32)
    gate_up = np.empty((num_rows, weights.gate_up_bias.shape[1]), dtype=np.float32)
    gated = np.empty((num_rows, weights.down.shape[2]), dtype=np.float32)
    mixed_by_head = mixed.reshape(num_rows, width // head_dim, head_dim)
    for layer in range(weights.qkv.shape[0]):
        _norm(x, weights.attention_norm[layer], weights.eps, normed)
        _multiply(weights.qkv, weights.qkv_bias, layer, normed, projected)
        _by_head(projected, heads)
        _attention(weights, layer, memory[layer], pages, sequences, positions, heads, mixed_by_head)
        _multiply(weights.out, weights.out_bias, layer, mixed, added)
        _add(added, x)
        _norm(x, weights.mlp_norm[layer], weights.eps, normed)
        _multiply(weights.gate_up, weights.gate_up_bias, layer, normed, gate_up)
        _gate(gate_up, gated)
        _multiply(weights.down, weights.down_bias, layer, gated, added)
        _add(added, x)


@inner
def _by_head(projected, heads):
    """Without the columns that fill the last tile."""
    for row in range(heads.shape[0]):
        for head in range(heads.shape[1]):
            for k in range(heads.shape[2]):
                heads[row, head, k] = projected[row, head * heads.shape[2] + k]


@inner
def _add(added, x):
    """x += added. NumPy's own way takes a second more to compile; so with _take."""
    for row in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[row, k] += added[row, k]


@inner
def _take(table, rows, x):
    """x [n, D] = table[rows]."""
    for row in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[row, k] = table[rows[row], k]


@inner
def _choose(logits):
    """The likeliest token, and how likely it is."""
    best = 0
    for token in range(1, logits.shape[0]):
        if logits[token] > logits[best]:
            best = token
    total = _ZERO
    for token in range(logits.shape[0]):
        total += exponential(logits[token] - logits[best])
    return best, _ONE / total


@inner
def _first_rows(embedding, rows):
    """Sequence, position and embedding of all new tokens; which row is the last of each sequence."""
    num_rows, count = rows.token_ids.shape[0], rows.num_new.shape[0]
    sequences, positions = np.empty(num_rows, dtype=np.int64), np.empty(num_rows, dtype=np.int64)
    last = np.empty(count, dtype=np.int64)
    row = 0
    for sequence in range(count):
        for number in range(rows.num_new[sequence]):
            sequences[row], positions[row] = sequence, rows.num_known[sequence] + number
            row += 1
        last[sequence] = row - 1
    x = np.empty((num_rows, embedding.shape[1]), dtype=np.float32)
    _take(embedding, rows.token_ids, x)
    return sequences, positions, x, last


@inner
def _append(weights, x, number, least_reached, chains, going, positions):
    """Append to the chains in `going` what follows x; those that go on come to its front: how many do."""
    tokens, lengths, reached = chains
    normed = np.empty_like(x)
    logits = np.empty((x.shape[0], weights.head_bias.shape[1]), dtype=np.float32)
    _norm(x, weights.final_norm, weights.eps, normed)
    _multiply(weights.head, weights.head_bias, 0, normed, logits)
    num_going = 0
    for row in range(x.shape[0]):
        sequence = going[row]
        best, likely = _choose(logits[row, : weights.embedding.shape[0]])
        tokens[sequence, number], lengths[sequence] = best, number + 1
        reached[sequence] *= likely
        if reached[sequence] >= least_reached:
            going[num_going], positions[num_going] = sequence, positions[row] + 1
            num_going += 1
    return num_going


@compiled
def greedy_chain(weights, memory, rows, least_reached, tokens, lengths):
    """See greedy_chain of the package; fills tokens [B, n], and lengths [B] with how many are each one's.

    The layers stand in one place of the loop: each place would be compiled anew.
    """
    count, num_tokens = tokens.shape
    width = weights.embedding.shape[1]
    reached = np.empty(count, dtype=np.float32)
    for sequence in range(count):
        reached[sequence], lengths[sequence] = _ONE, 0
    chains = (tokens, lengths, reached)
    going, positions, x, chosen = _first_rows(weights.embedding, rows)
    for number in range(max(1, num_tokens)):
        _forward(weights, memory, rows.pages, going, positions, x)
        if num_tokens == 0:
            break
        if number == 0:
            ends = np.empty((count, width), dtype=np.float32)
            _take(x, chosen, ends)
            for sequence in range(count):
                going[sequence], positions[sequence] = sequence, positions[chosen[sequence]]
            x = ends
        num_going = _append(weights, x, number, least_reached, chains, going, positions)
        if num_going == 0 or number + 1 == num_tokens:
            break
        for row in range(num_going):
            chosen[row] = tokens[going[row], number]
        x = np.empty((num_going, width), dtype=np.float32)
        _take(weights.embedding, chosen, x)
