"""Mamba-2, token by token: a part is one group of one sequence, with its heads."""

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from backend.kernels.compiled import as_float, inner, next_part, pointer_to, threaded
from backend.kernels.exponential import exponential
from backend.kernels.state_rows import convolve, keep, row_of

_floats, _integers = pointer_to(types.float32), pointer_to(types.int64)
_LINEAR = np.float32(20)  # above it, softplus is the identity

(_INPUTS, _CONV, _CONV_BIAS, _RATE, _BIAS, _SKIP, _RECURRENT, _ROWS, _RESULTS) = range(1, 10)
(_CHUNKS, _NUM_CHUNKS, _TOKENS, _SLOTS, _SLOT_ROWS, _TAPS, _GROUPS, _HEADS, _SIZE, _DIM) = range(10, 20)
(_LEAST, _MOST) = range(20, 22)
# The words of a job, see __init__.py.


@inner
def _step(dt, bias, least, most):
    x = dt + bias
    soft = x if x > _LINEAR else np.log1p(exponential(x))
    return min(max(soft, least), most)


@inner
def _update(state, x, b, c, step, decay, skip, output):
    """One token's change of a head's state [N, P], and its output [P]."""
    for j in range(x.shape[0]):
        output[j] = skip * x[j]
        x[j] = step * x[j]
    for i in range(b.shape[0]):
        for j in range(x.shape[0]):
            own = state[i, j] * decay + b[i] * x[j]
            state[i, j] = own
            output[j] += c[i] * own


@inner
def _scan_group(chunk, group, inputs, weights, limits, recurrent, rows, results):
    """All heads of a group."""
    conv, conv_bias, rate, bias, skip = weights
    slot, num_replayed, begin, count, is_new = chunk[0], chunk[1], chunk[2], chunk[3], chunk[4]
    window, rows = conv.shape[1] - 1, rows[slot]
    num_heads, size, dim = recurrent.shape[1:]
    channels, known = conv.shape[0], window + num_replayed
    num_groups = (channels - num_heads * dim) // (2 * size)
    sharing = num_heads // num_groups
    num_tokens, is_kept = num_replayed + count, count <= rows.shape[0] - window
    values, first_b = group * sharing * dim, num_heads * dim + group * size
    first_c = first_b + num_groups * size
    if is_new:
        rows[:window, values : values + sharing * dim] = 0
        rows[:window, first_b : first_b + size] = 0
        rows[:window, first_c : first_c + size] = 0
        recurrent[slot, group * sharing : (group + 1) * sharing] = 0
    b, c = np.empty((num_tokens, size), np.float32), np.empty((num_tokens, size), np.float32)
    for t in range(num_tokens):
        b[t] = conv_bias[first_b : first_b + size]
        c[t] = conv_bias[first_c : first_c + size]
        convolve(b[t], first_b, t, rows, inputs, conv, known, begin)
        convolve(c[t], first_c, t, rows, inputs, conv, known, begin)
    x, unseen = np.empty(dim, np.float32), np.empty(dim, np.float32)
    for head in range(group * sharing, (group + 1) * sharing):
        state = recurrent[slot, head]
        for t in range(num_tokens):
            if t == num_replayed and is_kept:
                state = state.copy()
            x[:] = conv_bias[head * dim : (head + 1) * dim]
            convolve(x, head * dim, t, rows, inputs, conv, known, begin)
            row = row_of(window + t, rows, inputs, known, begin)
            step = _step(row[channels + head], bias[head], limits[0], limits[1])
            output = unseen if t < num_replayed else results[begin + t - num_replayed, head]
            _update(state, x, b[t], c[t], step, exponential(rate[head] * step), skip[head], output)
    source, num_kept = (num_replayed, window + count) if is_kept else (num_tokens, window)
    for first, number in (
        (values, sharing * dim),
        (first_b, size),
        (first_c, size),
        (channels + group * sharing, sharing),
    ):
        keep(rows, inputs, first, number, source, num_kept, known, begin)


@threaded
def scan(job):
    """Results [tokens, heads, P] of all chunks; changes states and rows."""
    groups, heads, size, dim, taps = job[_GROUPS], job[_HEADS], job[_SIZE], job[_DIM], job[_TAPS]
    channels = heads * dim + 2 * groups * size
    width = channels + heads
    inputs = carray(_floats(job[_INPUTS]), (job[_TOKENS], width))
    weights = (
        carray(_floats(job[_CONV]), (channels, taps)),
        carray(_floats(job[_CONV_BIAS]), channels),
        carray(_floats(job[_RATE]), heads),
        carray(_floats(job[_BIAS]), heads),
        carray(_floats(job[_SKIP]), heads),
    )
    limits = as_float(np.int32(job[_LEAST])), as_float(np.int32(job[_MOST]))
    recurrent = carray(_floats(job[_RECURRENT]), (job[_SLOTS], heads, size, dim))
    rows = carray(_floats(job[_ROWS]), (job[_SLOTS], job[_SLOT_ROWS], width))
    results = carray(_floats(job[_RESULTS]), (job[_TOKENS], heads, dim))
    chunks = carray(_integers(job[_CHUNKS]), (job[_NUM_CHUNKS], 6))
    part = next_part(job)
    while part < job[_NUM_CHUNKS] * groups:
        _scan_group(chunks[part // groups], part % groups, inputs, weights, limits, recurrent, rows, results)
        part = next_part(job)
