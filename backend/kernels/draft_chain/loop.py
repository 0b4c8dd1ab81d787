"""The loops. Numba types NamedTuples field by field, so that they are passed as they are.

A part that a network lacks has arrays of length 0. Offsets are unsigned: LLVM then knows that nothing wraps
around, and uses vectors.
"""

import math

import numpy as np

from backend.kernels.compiled import compiled, inner
from backend.kernels.exponential import exponential
from backend.kernels.tiles import add_product, product
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
    found = product(matrices, layer, x)
    heads = np.ascontiguousarray(found[:, : num_heads * size]).reshape(x.shape[0], num_heads, size)
    for row in range(x.shape[0]):
        cos, signed_sin = weights.cos[positions[row]], weights.signed_sin[positions[row]]
        for head in range(gains.shape[0]):
            _rotate(heads[row, head], gains[head], cos, signed_sin, weights.eps)
    return heads


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
def _attend(queries, stored, begin, count, mixed):
    """One token's queries [heads, head_dim] over `count` tokens of `stored` from the offset `begin` on."""
    size, num_shared = _U(queries.shape[1]), queries.shape[0] // (stored.shape[3] // 2)
    to_values, token_size = _U(stored.shape[3] // 2) * size, _U(stored.shape[3]) * size
    flat, scores = stored.reshape(-1), np.empty(count, np.float32)
    for head in range(queries.shape[0]):
        own, query, first = mixed[head], queries[head], begin + _U(head // num_shared) * size
        for i in range(count):
            key, score = first + _U(i) * token_size, _ZERO
            for k in range(size):
                score += query[k] * flat[key + k]
            scores[i] = score
        _softmax(scores)
        own[:] = _ZERO
        for i in range(count):
            value, share = first + _U(i) * token_size + to_values, scores[i]
            for k in range(size):
                own[k] += share * flat[value + k]


@inner
def _attend_rows(heads, num_queries, layer, stored, counts, owners):
    """Rows of queries [n, heads, head_dim], each over the first `counts` stored tokens of its owner."""
    mixed = np.empty((heads.shape[0], num_queries, heads.shape[2]), np.float32)
    sequence_size = stored.shape[2] * stored.shape[3] * stored.shape[4]
    for row in range(heads.shape[0]):
        begin = _U((layer * stored.shape[1] + owners[row]) * sequence_size)
        # A slice of one row is contiguous, one of all rows is not.
        _attend(heads[row, :num_queries], stored, begin, counts[row], mixed[row])
    return mixed.reshape(heads.shape[0], num_queries * heads.shape[2])


@inner
def _gather(memory, rows, num_more):
    """A copy of the visible columns of each sequence, in a row, with room for more; and their numbers [B].

    [L, pages, 16, 2 * kv_heads, head_dim] → [L, B, n, 2 * kv_heads, head_dim].
    """
    counts, width = np.zeros(rows.num_known.shape[0], np.int64), rows.num_known.max() + num_more
    copy = np.empty((memory.shape[0], counts.shape[0], width, memory.shape[3], memory.shape[4]), np.float32)
    sources, targets, token_size = memory.reshape(-1), copy.reshape(-1), memory.shape[3] * memory.shape[4]
    for sequence in range(counts.shape[0]):
        for first in range(0, rows.num_known[sequence], PAGE_TOKENS):
            page = rows.pages[sequence, first // PAGE_TOKENS]
            if rows.is_visible.shape[0] > 0 and not rows.is_visible[page]:
                continue
            begin, end = max(rows.first_column - first, 0), min(rows.num_known[sequence] - first, PAGE_TOKENS)
            for layer in range(memory.shape[0]):
                source = _U(((layer * memory.shape[1] + page) * PAGE_TOKENS + begin) * token_size)
                target = _U(((layer * counts.shape[0] + sequence) * width + counts[sequence]) * token_size)
                for k in range(_U((end - begin) * token_size)):
                    targets[target + k] = sources[source + k]
            counts[sequence] += end - begin
    return copy, counts


@inner
def _scatter(stored, num_stored, num_written, rows, num_layers, memory):
    """Copy the first `num_written` [B] computed tokens of each sequence to its pages."""
    for sequence in range(num_written.shape[0]):
        for number in range(num_written[sequence]):
            column = rows.num_known[sequence] + number
            page = rows.pages[sequence, column // PAGE_TOKENS]
            for layer in range(num_layers):
                found = stored[layer, sequence, num_stored[sequence] + number]
                memory[layer, page, column % PAGE_TOKENS] = found


@inner
def _attention(weights, layer, stored, num_stored, placed, rows, x):
    """Self-attention of the rows x [n, D], whose keys and values it stores: x + attention, and `placed`.

    `placed`: the owner of each row and its number among those computed. Of the last layer only the last of
    each sequence is left: what follows the keys and values of the others is not read.
    """
    own, (owners, numbers) = weights.layers, placed
    num_queries = own.gains.shape[1] - stored.shape[3] // 2
    normed = _norm(x, own.attention_norm[layer], weights.eps)
    positions = rows.num_known[owners] + numbers - rows.first_column
    heads = _heads(own.qkv, layer, own.gains[layer], stored.shape[3] // 2, weights, positions, normed)
    for row in range(x.shape[0]):
        place = num_stored[owners[row]] + numbers[row]
        stored[layer, owners[row], place] = heads[row, num_queries:]
    if layer + 1 == own.qkv.shape[0] and x.shape[0] > num_stored.shape[0]:
        last = np.flatnonzero(numbers + 1 == rows.num_new[owners])
        x, heads, owners, numbers = x[last], heads[last], owners[last], numbers[last]
    counts = num_stored[owners] + numbers + 1
    mixed = _attend_rows(heads, num_queries, layer, stored, counts, owners)
    add_product(own.out, layer, mixed, x)
    return x, (owners, numbers)


@inner
def _cross_attention(weights, layer, stored, num_stored, placed, rows, x):
    """x += attention to the known tokens of another memory, a layer of `stored`."""
    own, (owners, numbers) = weights.cross, placed
    positions = rows.num_known[owners] + numbers - rows.first_column
    normed = _norm(x, own.norm, weights.eps)
    queries = _heads(own.query, 0, own.gains, 0, weights, positions, normed)
    mixed = _attend_rows(queries, queries.shape[1], layer, stored, num_stored[owners], owners)
    add_product(own.out, 0, mixed, x)


@inner
def _feed_forward(weights, layer, x):
    """x += down(silu(gate) · up) of normed x."""
    own = weights.layers
    wide = product(own.gate_up, layer, _norm(x, own.mlp_norm[layer], weights.eps))
    gated = np.empty((x.shape[0], own.down.shape[2]), np.float32)
    for row in range(x.shape[0]):
        for k in range(gated.shape[1]):
            gate = wide[row, k]
            gated[row, k] = gate / (_ONE + exponential(-gate)) * wide[row, gated.shape[1] + k]
    add_product(own.down, layer, gated, x)


@inner
def _embed(weights, token_ids, states):
    """What enters the first layer [n, D]: embeddings, and what states [n, D] add to them."""
    x = np.empty((token_ids.shape[0], weights.embedding.shape[1]), np.float32)
    for row in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[row, k] = weights.embedding[token_ids[row], k]
    if weights.fuse.shape[0] > 0:
        add_product(weights.fuse, 0, _norm(states, weights.fuse_norm, weights.eps), x)
    return x


@inner
def _choose(weights, states):
    """The most likely next token of each row [n, D], and its probability."""
    tokens, probabilities = np.empty(states.shape[0], np.int64), np.empty(states.shape[0], np.float32)
    logits = product(weights.head, 0, _norm(states, weights.final_norm, weights.eps))
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
def draft_chain(weights, memory, rows, placed, min_probability, tokens, lengths):
    """The compiled loop of the package's `roll_out`; fills tokens [B, n] and lengths [B]."""
    count, num_tokens = tokens.shape
    num_layers = weights.layers.qkv.shape[0]
    stored, num_stored = _gather(memory, rows, rows.num_new.max() + num_tokens)
    chains = (tokens, lengths, np.full(count, _ONE))
    x = _embed(weights, rows.token_ids, rows.states)
    lengths[:] = 0
    for number in range(max(1, num_tokens)):
        for layer in range(num_layers):
            x, placed = _attention(weights, layer, stored, num_stored, placed, rows, x)
            if weights.cross.query.shape[0] > 0:
                _cross_attention(weights, num_layers, stored, num_stored, placed, rows, x)
            _feed_forward(weights, layer, x)
        if num_tokens == 0:
            break
        states = _norm(x, weights.closing_norm, weights.eps)
        found = _choose(weights, states)
        going = _append(rows, number, found, placed[0], min_probability, chains)
        if going.shape[0] == 0:
            break
        owners = placed[0][going]
        placed = (owners, rows.num_new[owners] + number)
        x = _embed(weights, found[0][going], states[going])
    num_written = rows.num_new - (num_tokens > 0)  # not the last, whose page may not be there
    if rows.keeps:
        num_written = num_written + lengths
    _scatter(stored, num_stored, num_written, rows, num_layers, memory)
