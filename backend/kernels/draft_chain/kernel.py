"""The loops. Numba types NamedTuples field by field, so that they are passed as they are.

A part that a network lacks has arrays of length 0. Offsets are unsigned: LLVM then knows that nothing wraps
around, and uses vectors.
"""

import math

import numpy as np

from backend.kernels.compiled import compiled, inner
from backend.kernels.exponential import exponential
from backend.kernels.tiles import multiply
from backend.types import PAGE_TOKENS

_U = np.uint64
_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST = np.float32(-1e30)


@inner
def _norm(x, gains, eps):
    """RMSNorm of each row of x [n, D]; x itself without gains."""
    y = np.empty_like(x)
    for row in range(x.shape[0]):
        factor = _ONE
        if gains.shape[0] > 0:
            total = _ZERO
            for k in range(x.shape[1]):
                total += x[row, k] * x[row, k]
            factor = _ONE / math.sqrt(total / np.float32(x.shape[1]) + eps)
        for k in range(x.shape[1]):
            y[row, k] = x[row, k] * factor * (gains[k] if gains.shape[0] > 0 else _ONE)
    return y


@inner
def _product(matrices, layer, x):
    """x [n, K] · one of the tiled matrices: [n, columns of the tiles]."""
    columns = matrices.shape[1] * matrices.shape[3]
    y = np.zeros((x.shape[0], columns), np.float32)
    begin = layer * x.shape[1] * columns
    multiply(matrices.reshape(-1), begin, (x.shape[1], columns), x.reshape(-1), y.reshape(-1), x.shape[0])
    return y


@inner
def _add_product(matrices, layer, x, y):
    """y [n, N] += x · matrix, without the columns that fill the last tile."""
    found = _product(matrices, layer, x)
    for row in range(y.shape[0]):
        for k in range(y.shape[1]):
            y[row, k] += found[row, k]


@inner
def _rotate(head, gains, cos, signed_sin, eps):
    """RMSNorm and rotary embedding of one query or key, in place."""
    total, half = _ZERO, head.shape[0] // 2
    for k in range(head.shape[0]):
        total += head[k] * head[k]
    factor = _ONE / math.sqrt(total / np.float32(head.shape[0]) + eps)
    for k in range(half):
        low, high = head[k] * factor * gains[k], head[k + half] * factor * gains[k + half]
        head[k] = low * cos[k] + high * signed_sin[k]
        head[k + half] = high * cos[k + half] + low * signed_sin[k + half]


@inner
def _heads(matrices, layer, gains, num_others, weights, positions, x):
    """Projections of x [n, heads, head_dim]: those with gains, normed and rotated, then `num_others` more."""
    num_heads, size = gains.shape[0] + num_others, gains.shape[1]
    found = _product(matrices, layer, x)
    heads = np.ascontiguousarray(found[:, : num_heads * size]).reshape(x.shape[0], num_heads, size)
    for row in range(x.shape[0]):
        cos, signed_sin = weights.cos[positions[row]], weights.signed_sin[positions[row]]
        for head in range(gains.shape[0]):
            _rotate(heads[row, head], gains[head], cos, signed_sin, weights.eps)
    return heads


@inner
def _score(query, keys, offsets, count, first, scores):
    """Products of the query with `count` keys."""
    size = _U(query.shape[0])
    for i in range(count):
        key, score = offsets[i] + first, _ZERO
        for k in range(size):
            score += query[k] * keys[key + k]
        scores[i] = score


@inner
def _add_values(shares, values, offsets, count, first, mixed):
    size = _U(mixed.shape[0])
    for i in range(count):
        if shares[i] > _ZERO:
            value = offsets[i] + first
            for k in range(size):
                mixed[k] += shares[i] * values[value + k]


@inner
def _softmax(scores):
    top, total = _LOWEST, _ZERO
    for i in range(scores.shape[0]):
        top = max(top, scores[i])
    for i in range(scores.shape[0]):
        scores[i] = exponential(scores[i] - top)
        total += scores[i]
    for i in range(scores.shape[0]):
        scores[i] /= total


@inner
def _attend(queries, stored, drafted, kv_heads, mixed):
    """One token's queries [heads, head_dim] over stored and drafted tokens.

    Both are (keys and values in a row, offset of each token in it, number of tokens, offset of the first).
    """
    memory, offsets, num_stored, memory_begin = stored
    scratch, draft_offsets, num_drafted, scratch_begin = drafted
    size, shared = _U(queries.shape[1]), queries.shape[0] // kv_heads
    to_values = _U(kv_heads) * size
    scores = np.empty(num_stored + num_drafted, np.float32)
    for head in range(queries.shape[0]):
        own, query = mixed[head], queries[head]
        key, draft_key = (
            memory_begin + _U(head // shared) * size,
            scratch_begin + _U(head // shared) * size,
        )
        _score(query, memory, offsets, num_stored, key, scores)
        _score(query, scratch, draft_offsets, num_drafted, draft_key, scores[num_stored:])
        _softmax(scores)
        own[:] = _ZERO
        _add_values(scores, memory, offsets, num_stored, key + to_values, own)
        _add_values(scores[num_stored:], scratch, draft_offsets, num_drafted, draft_key + to_values, own)


@inner
def _visible(rows, ends, token_size):
    """Offsets of the visible tokens of each sequence before column `ends`, in order, and their number."""
    offsets = np.empty((ends.shape[0], rows.pages.shape[1] * PAGE_TOKENS), _U)
    counts = np.zeros(ends.shape[0], np.int64)
    for sequence in range(ends.shape[0]):
        for column in range(rows.first_column, ends[sequence]):
            page = rows.pages[sequence, column // PAGE_TOKENS]
            if rows.is_visible.shape[0] == 0 or rows.is_visible[page]:
                place = page * PAGE_TOKENS + column % PAGE_TOKENS
                offsets[sequence, counts[sequence]] = _U(place * token_size)
                counts[sequence] += 1
    return offsets, counts


@inner
def _store(keys_values, layer, memories, placed):
    """Keys and values of all rows: those with a number to scratch, the others to their pages."""
    memory, scratch, rows = memories
    for row in range(keys_values.shape[0]):
        owner, column, number = placed[0][row], placed[1][row], placed[2][row]
        page, slot = rows.pages[owner, column // PAGE_TOKENS] if number < 0 else 0, column % PAGE_TOKENS
        target = memory[layer, page, slot] if number < 0 else scratch[layer, owner, number]
        for i in range(keys_values.shape[1]):
            target[i // memory.shape[4], i % memory.shape[4]] = keys_values[row, i]


@inner
def _attention(weights, layer, memories, visible, placed, x):
    """Self-attention of the rows x [n, D], whose keys and values it stores: x + attention, and `placed`.

    `placed`: owner, column and number of each row. Of the last layer only rows with a number are left:
    nothing reads what follows the keys and values of the others.
    """
    memory, scratch, rows = memories
    own, offsets, counts = weights.layers, visible[0], visible[1]
    kv_heads, size = memory.shape[4], memory.shape[5]
    num_queries, token_size = own.gains.shape[1] - kv_heads, 2 * kv_heads * size
    normed = _norm(x, own.attention_norm[layer], weights.eps)
    positions = placed[1] - rows.first_column
    heads = _heads(own.qkv, layer, own.gains[layer], kv_heads, weights, positions, normed)
    _store(heads[:, num_queries:], layer, memories, placed)
    if layer + 1 == own.qkv.shape[0] and placed[2].min() < 0:
        ends = np.flatnonzero(placed[2] >= 0)
        x, heads, placed = x[ends], heads[ends], (placed[0][ends], placed[1][ends], placed[2][ends])
    owners, columns, numbers = placed
    mixed = np.empty((x.shape[0], num_queries, size), np.float32)
    flat, flat_scratch = memory[layer].reshape(-1), scratch[layer].reshape(-1)
    draft_offsets = np.arange(scratch.shape[2]).astype(_U) * _U(token_size)
    for row in range(x.shape[0]):
        owner, num_stored = owners[row], counts[owners[row]]
        if numbers[row] < 0:  # all before are visible, in order
            num_stored = columns[row] - rows.first_column + 1
        stored = (flat, offsets[owner], num_stored, _U(0))
        drafted = (flat_scratch, draft_offsets, numbers[row] + 1, _U(owner * scratch.shape[2] * token_size))
        _attend(heads[row, :num_queries], stored, drafted, kv_heads, mixed[row])
    _add_product(own.out, layer, mixed.reshape(x.shape[0], num_queries * size), x)
    return x, placed


@inner
def _cross_attention(weights, memory, visible, placed, rows, x):
    """x += attention to the visible tokens of another memory [pages, 16, 2, kv_heads, head_dim]."""
    own, (offsets, counts), owners = weights.cross, visible, placed[0]
    normed = _norm(x, own.norm, weights.eps)
    queries = _heads(own.query, 0, own.gains, 0, weights, placed[1] - rows.first_column, normed)
    mixed, flat = np.empty(queries.shape, np.float32), memory.reshape(-1)
    for row in range(x.shape[0]):
        stored = (flat, offsets[owners[row]], counts[owners[row]], _U(0))
        nothing = (flat, offsets[owners[row]], 0, _U(0))
        _attend(queries[row], stored, nothing, memory.shape[3], mixed[row])
    _add_product(own.out, 0, mixed.reshape(x.shape[0], own.gains.size), x)


@inner
def _feed_forward(weights, layer, x):
    """x += down(silu(gate) · up) of normed x."""
    own = weights.layers
    wide = _product(own.gate_up, layer, _norm(x, own.mlp_norm[layer], weights.eps))
    gated = np.empty((x.shape[0], own.down.shape[2]), np.float32)
    for row in range(x.shape[0]):
        for k in range(gated.shape[1]):
            gate = wide[row, k]
            gated[row, k] = gate / (_ONE + exponential(-gate)) * wide[row, gated.shape[1] + k]
    _add_product(own.down, layer, gated, x)


@inner
def _embed(weights, token_ids, states):
    """What enters the first layer [n, D]: embeddings, and what states [n, D] add to them."""
    x = np.empty((token_ids.shape[0], weights.embedding.shape[1]), np.float32)
    for row in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[row, k] = weights.embedding[token_ids[row], k]
    if weights.fuse.shape[0] > 0:
        _add_product(weights.fuse, 0, _norm(states, weights.fuse_norm, weights.eps), x)
    return x


@inner
def _choose(weights, states):
    """The most likely next token of each row [n, D], and its probability."""
    tokens, probabilities = np.empty(states.shape[0], np.int64), np.empty(states.shape[0], np.float32)
    logits = _product(weights.head, 0, _norm(states, weights.final_norm, weights.eps))
    for row in range(states.shape[0]):
        best, total = 0, _ZERO
        for token in range(1, weights.embedding.shape[0]):
            if logits[row, token] > logits[row, best]:
                best = token
        for token in range(weights.embedding.shape[0]):
            total += exponential(logits[row, token] - logits[row, best])
        tokens[row], probabilities[row] = best, _ONE / total
    return tokens, probabilities


@inner
def _keep(memory, scratch, ends, rows, lengths):
    """Copy keys and values of each chain, but its last token's, to the pages of its sequence."""
    for sequence in range(lengths.shape[0]):
        for number in range(lengths[sequence]):
            column = ends[sequence] + number
            page = rows.pages[sequence, column // PAGE_TOKENS]
            for layer in range(memory.shape[0]):
                memory[layer, page, column % PAGE_TOKENS] = scratch[layer, sequence, number]


@inner
def _append(rows, number, found, owners, min_probability, chains):
    """Append a token to the chain of each owner; returns which of these rows go on."""
    (next_tokens, likely), (tokens, lengths, reached) = found, chains
    going, num_going = np.empty(owners.shape[0], np.int64), 0
    for row in range(owners.shape[0]):
        sequence = owners[row]
        tokens[sequence, number], lengths[sequence] = next_tokens[row], number + 1
        reached[sequence] *= likely[row]
        if reached[sequence] >= min_probability and number + 1 < rows.limits[sequence]:
            going[num_going] = row
            num_going += 1
    return going[:num_going]


@compiled
def draft_chain(weights, memory, cross_memory, rows, placed, min_probability, tokens, lengths):
    """See roll_out of the package; fills tokens [B, n] and lengths [B]."""
    count, num_tokens = tokens.shape
    num_layers, kv_heads, size = memory.shape[0], memory.shape[4], memory.shape[5]
    scratch = np.empty((num_layers, count, max(1, num_tokens), 2, kv_heads, size), np.float32)
    memories = (memory, scratch, rows)
    ends = rows.num_known + rows.num_new - (num_tokens > 0)  # the last new token is in scratch
    visible = _visible(rows, ends, 2 * kv_heads * size)
    chains = (tokens, lengths, np.full(count, _ONE))
    x = _embed(weights, rows.token_ids, rows.states)
    lengths[:] = 0
    for number in range(max(1, num_tokens)):
        for layer in range(num_layers):
            x, placed = _attention(weights, layer, memories, visible, placed, x)
            if weights.cross.query.shape[0] > 0:
                _cross_attention(weights, cross_memory, visible, placed, rows, x)
            _feed_forward(weights, layer, x)
        if num_tokens == 0:
            break
        states = _norm(x, weights.closing_norm, weights.eps)
        found = _choose(weights, states)
        going = _append(rows, number, found, placed[0], min_probability, chains)
        if going.shape[0] == 0:
            break
        owners = placed[0][going]
        placed = (owners, ends[owners] + number + 1, np.full(going.shape[0], number + 1))
        x = _embed(weights, found[0][going], states[going])
    if rows.keeps:
        _keep(memory, scratch, ends, rows, lengths)
