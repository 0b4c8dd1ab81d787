"""The loops, made of round_layer's parts. Numba types NamedTuples field by field.

A page holds keys [kv_heads, head_dim, 16] and values [16, kv_heads, head_dim]: so what multiplies a page, a
query or its shares, multiplies rows of whole vectors.
"""

import math

import numpy as np

from backend.kernels.compiled import compiled, inner
from backend.kernels.exponential import exponential
from backend.kernels.round_layer.kernel import (
    fed_forward,
    guessed,
    norm,
    product,
    rotate,
    unit,
)
from backend.kernels.tiles import adder
from backend.types import PAGE_TOKENS

VECTOR = 16  # what a head's size must be a multiple of

_U = np.uint64
_PAGE, _VECTOR = _U(PAGE_TOKENS), _U(VECTOR)
_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST = np.float32(-1e30)  # of scores: finite as well when another one is taken from it
_NOT_FINITE = np.int32(0x7F800000)  # the exponent of infinities and of what is no number

_add = adder(VECTOR)


@inner
def _take(table, rows):
    """[n, D]: these rows of it."""
    x = np.empty((rows.shape[0], table.shape[1]), np.float32)
    for row in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[row, k] = table[rows[row], k]
    return x


@inner
def _scale(head, gains, floor):
    """Divide a query or key by sqrt(x² + floor), and multiply by its gains."""
    factor = unit(head, floor)
    for k in range(head.shape[0]):
        head[k] *= factor * gains[k]


@inner
def _heads(weights, angles, positions, x):
    """Heads [B, heads, head_dim] of x, the first of them normed, weighed and turned to these positions."""
    num_turned, size = weights.gains.shape
    normed = np.empty_like(x)
    norm(x, weights.norm, weights.eps, normed)
    flat = np.ascontiguousarray(product(weights.matrix, normed)[:, : weights.num_heads * size])
    heads = flat.reshape(x.shape[0], weights.num_heads, size)
    for row in range(x.shape[0]):
        cos, signed_sin = angles.cos[positions[row]], angles.signed_sin[positions[row]]
        for head in range(num_turned):
            _scale(heads[row, head], weights.gains[head], weights.floor)
            rotate(heads[row, head], _ONE, cos, signed_sin)
    return heads


@inner
def _mix(heads, shares, scores, mixed):
    """One head's queries, keys and values [L, 3, size] → the mean of what its L queries get [size]."""
    layers, size = heads.shape[0], heads.shape[2]
    scale = _ONE / np.float32(math.sqrt(size))
    shares[:] = _ZERO
    for query in range(layers):
        top, total = _LOWEST, _ZERO
        for key in range(layers):
            score = _ZERO
            for k in range(size):
                score += heads[query, 0, k] * heads[key, 1, k]
            scores[key] = score * scale
            top = max(top, scores[key])
        for key in range(layers):
            scores[key] = exponential(scores[key] - top)
            total += scores[key]
        for key in range(layers):
            shares[key] += scores[key] / (total * np.float32(layers))
    mixed[:] = _ZERO
    for key in range(layers):
        for k in range(size):
            mixed[k] += shares[key] * heads[key, 2, k]


@inner
def _enter(streams, weights, x, means):
    """x [T * L, D] = norm(streams) [T, L, D] + embed, and its means over layers [T, D]."""
    count, layers, width = streams.shape
    norm(streams.reshape(count * layers, width), weights.norm, weights.eps, x)
    means[:] = _ZERO
    for row in range(count * layers):
        for k in range(width):
            x[row, k] += weights.embed[row % layers, k]
            means[row // layers, k] += x[row, k] / np.float32(layers)


@inner
def _mix_layers(weights, streams, y):
    """y [T, D] = the mean over L of x + attention between its rows, x = norm(streams) + embed [T, L, D]."""
    count, layers, width = streams.shape
    num_heads, size = weights.gains.shape[1], weights.gains.shape[2]
    x = np.empty((count * layers, width), np.float32)
    _enter(streams, weights, x, y)
    wide = np.ascontiguousarray(product(weights.matrix, x)[:, : 3 * num_heads * size])
    heads = wide.reshape(count, layers, 3, num_heads, size)
    mixed = np.empty((count, num_heads, size), np.float32)
    shares, scores = np.empty(layers, np.float32), np.empty(layers, np.float32)
    for row in range(count):
        for head in range(num_heads):
            for layer in range(layers):
                _scale(heads[row, layer, 0, head], weights.gains[0, head], weights.floor)
                _scale(heads[row, layer, 1, head], weights.gains[1, head], weights.floor)
            _mix(heads[row, :, :, head], shares, scores, mixed[row, head])
    y += product(weights.out, mixed.reshape(count, num_heads * size))[:, :width]


@inner
def _store(keys_values, page, slot):
    """Keys and values [2 * kv_heads, head_dim] of a token, in a row."""
    kv_heads, size = keys_values.shape[0] // 2, keys_values.shape[1]
    values = kv_heads * size * PAGE_TOKENS
    for head in range(kv_heads):
        for k in range(size):
            page[(head * size + k) * PAGE_TOKENS + slot] = keys_values[head, k]
            page[values + (slot * kv_heads + head) * size + k] = keys_values[kv_heads + head, k]


@inner
def _seen(memory, pages, num_tokens, is_read):
    """Memory, and of each sequence where its pages begin there, and in how many slots is something to see."""
    begins, counts = np.empty(pages.shape, np.int64), np.zeros(pages.shape, np.int64)
    for row in range(pages.shape[0]):
        for i in range(pages.shape[1]):
            page, rest = pages[row, i], num_tokens[row] - i * PAGE_TOKENS
            begins[row, i] = page * memory.shape[1]
            if rest > 0 and is_read[page]:
                counts[row, i] = min(rest, PAGE_TOKENS)
    return memory.reshape(-1), begins, counts


@inner
def _score(seen, sequence, queries, origin, kv_heads, scores, column):
    """Scores [queries, C] of what is seen of a sequence, 16 columns for each of its pages from this one on.

    `queries` in a row; `origin`: where those of the sequence begin, and how long each is.
    """
    (memory, begins, counts), (first, size) = seen, origin
    num_queries, width = _U(scores.shape[0]), _U(scores.shape[1])
    shared = num_queries // kv_heads
    flat = scores.reshape(-1)
    for i in range(begins.shape[1]):
        count, goal = counts[sequence, i], _U(column + i * PAGE_TOKENS)
        if count > 0:
            for head in range(kv_heads):
                keys = (_U(begins[sequence, i]) + head * size * _PAGE, _PAGE)
                own = (first + head * shared * size, size)
                _add(memory, keys, size, queries, own, flat, (goal + head * shared * width, width), shared)
        for query in range(num_queries):
            for slot in range(_U(count), _PAGE):
                flat[goal + query * width + slot] = _LOWEST


@inner
def _weigh(seen, sequence, shares, column, kv_heads, mixed, size):
    """Add values by their shares [queries, C], in the columns of _score, to `mixed` [queries * head_dim]."""
    memory, begins, counts = seen
    num_queries, width = _U(shares.shape[0]), _U(shares.shape[1])
    shared, step = num_queries // kv_heads, kv_heads * size
    for i in range(begins.shape[1]):
        count, own = _U(counts[sequence, i]), _U(column + i * PAGE_TOKENS)
        values = _U(begins[sequence, i]) + step * _PAGE
        for head in range(kv_heads):
            for k in range(_U(0), size, _VECTOR):
                place = (values + head * size + k, step)
                origin, goal = (own + head * shared * width, width), (head * shared * size + k, size)
                _add(memory, place, count, shares.reshape(-1), origin, mixed, goal, shared)


@inner
def _share(scores):
    """Of each query [C] the shares that its scores get."""
    for query in range(scores.shape[0]):
        own = scores[query]
        top, total = _LOWEST, _ZERO
        for place in range(own.shape[0]):
            top = max(top, own[place])
        for place in range(own.shape[0]):
            own[place] = exponential(own[place] - top)
            total += own[place]
        for place in range(own.shape[0]):
            own[place] /= total


@inner
def _attend(weights, heads, kv_heads, parts, going, x):
    """x += attention of the first heads of each row to all that is seen of its sequence, in these parts."""
    count, num_heads, size = heads.shape
    num_queries, num_columns = weights.out.shape[2] // size, 0
    for part in parts:
        num_columns += part[1].shape[1] * PAGE_TOKENS
    mixed = np.zeros((count, num_queries * size), np.float32)
    for row in range(count):
        scores = np.zeros((num_queries, num_columns), np.float32)
        origin, column = (_U(row * num_heads * size), _U(size)), 0
        for part in parts:
            _score(part, going[row], heads.reshape(-1), origin, kv_heads, scores, column)
            column += part[1].shape[1] * PAGE_TOKENS
        _share(scores)
        column = 0
        for part in parts:
            _weigh(part, going[row], scores, column, kv_heads, mixed[row], _U(size))
            column += part[1].shape[1] * PAGE_TOKENS
    added = product(weights.out, mixed)
    for row in range(count):
        for k in range(x.shape[1]):
            x[row, k] += added[row, k]


@inner
def _guess(weights, known, remembered, drafted, number, going, positions, x):
    """Tokens x [B, D] of the sequences `going` → the likeliest next ones, and how likely they are.

    `drafted`: memory of keys and values of drafted tokens, and as what it is seen.
    """
    pages, seen, nothing = drafted
    heads = _heads(weights.own.heads, weights.angles, positions, x)
    kv_heads = (heads.shape[1] - weights.own.out.shape[2] // heads.shape[2]) // 2
    for row in range(x.shape[0]):
        _store(heads[row, -2 * kv_heads :], pages[going[row], number // PAGE_TOKENS], number % PAGE_TOKENS)
        seen[2][going[row], number // PAGE_TOKENS] = number % PAGE_TOKENS + 1
    _attend(weights.own, heads, _U(kv_heads), (known, seen), going, x)
    queries = _heads(weights.cross.heads, weights.angles, positions, x)
    _attend(weights.cross, queries, _U(kv_heads), (remembered, nothing), going, x)
    states = np.empty_like(x)
    fed_forward(weights.feed_forward, x, states)
    tokens, likely = np.empty(x.shape[0], np.int64), np.empty(x.shape[0], np.float32)
    guessed(weights.head, states, weights.embedded.shape[0], tokens, likely)
    return tokens, likely


@inner
def _nothing_drafted(count, num_tokens, page_elements):
    """Memory for so many tokens of each sequence [B, P, elements], and as what it is seen."""
    num_pages = -(-num_tokens // PAGE_TOKENS)
    pages = np.empty((count, num_pages, page_elements), np.float32)
    begins = np.arange(count * num_pages).reshape(count, num_pages) * page_elements
    seen = pages.reshape(-1), begins, np.zeros((count, num_pages), np.int64)
    return pages, seen, (seen[0], begins[:, :0].copy(), begins[:, :0].copy())


@compiled
def mixture_chain(weights, own_memory, cross_memory, rows, least_reached, tokens, lengths):
    """See mixture_chain of the package; fills tokens [B, n], and lengths [B] with how many are each one's."""
    count, num_tokens = tokens.shape
    known = _seen(own_memory, rows.pages, rows.num_known, rows.is_read)
    remembered = _seen(cross_memory, rows.pages, rows.num_known, rows.is_read)
    drafted = _nothing_drafted(count, num_tokens, own_memory.shape[1])
    going, last, positions = np.arange(count), rows.token_ids.copy(), rows.num_known.copy()
    reached = np.full(count, _ONE)
    for number in range(num_tokens):
        x = _take(weights.embedded, last)
        found, likely = _guess(weights, known, remembered, drafted, number, going, positions, x)
        num_going = 0
        for row in range(going.shape[0]):
            sequence = going[row]
            tokens[sequence, number], lengths[sequence] = found[row], number + 1
            reached[sequence] *= likely[row]
            if reached[sequence] >= least_reached:
                going[num_going], last[num_going] = sequence, found[row]
                positions[num_going] = positions[row] + 1
                num_going += 1
        if num_going == 0:
            break
        going, last, positions = going[:num_going], last[:num_going], positions[:num_going]


@compiled
def remember(weights, token_ids, positions, slots, streams, own_memory, cross_memory):
    """See remember of the package."""
    own = _heads(weights.own, weights.angles, positions, _take(weights.embedded, token_ids))
    mixed = np.empty((streams.shape[0], streams.shape[2]), np.float32)
    _mix_layers(weights.mix, streams, mixed)
    crossed = _heads(weights.cross, weights.angles, positions, mixed)
    _store_all(slots, own, crossed, own_memory, cross_memory)


@compiled
def store(slots, own, crossed, own_memory, cross_memory):
    """See store of the package."""
    _store_all(slots, own, crossed, own_memory, cross_memory)


@inner
def _clean(x):
    """0 for what is not finite. By its bits: compiled as they are, the loops take all numbers for finite."""
    flat = x.reshape(-1)
    bits = flat.view(np.int32)
    for i in range(flat.shape[0]):
        if bits[i] & _NOT_FINITE == _NOT_FINITE:
            flat[i] = _ZERO


@inner
def _store_all(slots, own, crossed, own_memory, cross_memory):
    _clean(own)
    _clean(crossed)
    for row in range(slots.shape[0]):
        page, slot = slots[row] // PAGE_TOKENS, slots[row] % PAGE_TOKENS
        _store(own[row], own_memory[page], slot)
        _store(crossed[row], cross_memory[page], slot)
