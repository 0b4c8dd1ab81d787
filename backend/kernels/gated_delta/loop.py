"""The gated delta rule, token by token: a part is one key head of one sequence, with its value heads."""

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from backend.kernels.compiled import inner, next_part, pointer_to, threaded
from backend.kernels.exponential import exponential
from backend.kernels.state_rows import convolve, keep, row_of

_floats, _integers = pointer_to(types.float32), pointer_to(types.int64)
_ONE, _EPS, _LINEAR = np.float32(1), np.float32(1e-6), np.float32(20)  # above it, softplus is the identity

(_INPUTS, _CONV, _RATE, _BIAS, _RECURRENT, _ROWS, _RESULTS, _CHUNKS, _NUM_CHUNKS) = range(1, 10)
(_TOKENS, _SLOTS, _SLOT_ROWS, _TAPS, _KEY_HEADS, _VALUE_HEADS, _KEY_DIM, _VALUE_DIM) = range(10, 18)
# The words of a job, see __init__.py.


@inner
def _normalise(x, factor):
    total = np.float32(0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    total = factor / np.sqrt(total + _EPS)
    for i in range(x.shape[0]):
        x[i] *= total


@inner
def _gates(a, b, rate, bias):
    """e^g and β."""
    x = a + bias
    soft = x if x > _LINEAR else np.log1p(exponential(x))
    return exponential(rate * soft), _ONE / (_ONE + exponential(-b))


@inner
def _update(state, query, key, value, decay, beta, output):
    """One token's change of a head's state [Dk, Dv], and its output [Dv]; `value` is lost."""
    output[:] = 0
    for i in range(key.shape[0]):
        for j in range(value.shape[0]):
            own = state[i, j] * decay
            state[i, j] = own
            output[j] += key[i] * own
    for j in range(value.shape[0]):
        value[j] = beta * (value[j] - output[j])
        output[j] = 0
    for i in range(key.shape[0]):
        for j in range(value.shape[0]):
            own = state[i, j] + key[i] * value[j]
            state[i, j] = own
            output[j] += query[i] * own


@inner
def _scan_head(chunk, head, inputs, weights, recurrent, rows, results):
    """All value heads of a key head."""
    conv, rate, bias = weights
    slot, num_replayed, begin, count, is_new = chunk[0], chunk[1], chunk[2], chunk[3], chunk[4]
    window, rows = conv.shape[1] - 1, rows[slot]
    num_values, key_dim, value_dim = recurrent.shape[1:]
    num_keys = (conv.shape[0] - num_values * value_dim) // (2 * key_dim)
    sharing, channels, known = num_values // num_keys, conv.shape[0], window + num_replayed
    num_tokens, is_kept = num_replayed + count, count <= rows.shape[0] - window
    values = 2 * num_keys * key_dim + head * sharing * value_dim
    if is_new:
        rows[:window, head * key_dim : (head + 1) * key_dim] = 0
        rows[:window, (num_keys + head) * key_dim : (num_keys + head + 1) * key_dim] = 0
        rows[:window, values : values + sharing * value_dim] = 0
        recurrent[slot, head * sharing : (head + 1) * sharing] = 0
    query, key = np.zeros((num_tokens, key_dim), np.float32), np.zeros((num_tokens, key_dim), np.float32)
    for t in range(num_tokens):
        convolve(query[t], head * key_dim, t, rows, inputs, conv, known, begin)
        convolve(key[t], (num_keys + head) * key_dim, t, rows, inputs, conv, known, begin)
        _normalise(query[t], _ONE / np.sqrt(np.float32(key_dim)))
        _normalise(key[t], _ONE)
    value, unseen = np.empty(value_dim, np.float32), np.empty(value_dim, np.float32)
    for own in range(head * sharing, (head + 1) * sharing):
        state = recurrent[slot, own]
        for t in range(num_tokens):
            if t == num_replayed and is_kept:
                state = state.copy()
            value[:] = 0
            convolve(value, 2 * num_keys * key_dim + own * value_dim, t, rows, inputs, conv, known, begin)
            row = row_of(window + t, rows, inputs, known, begin)
            decay, beta = _gates(row[channels + own], row[channels + num_values + own], rate[own], bias[own])
            output = unseen if t < num_replayed else results[begin + t - num_replayed, own]
            _update(state, query[t], key[t], value, decay, beta, output)
    source, num_kept = (num_replayed, window + count) if is_kept else (num_tokens, window)
    for first, size in (
        (head * key_dim, key_dim),
        ((num_keys + head) * key_dim, key_dim),
        (values, sharing * value_dim),
        (channels + head * sharing, sharing),
        (channels + num_values + head * sharing, sharing),
    ):
        keep(rows, inputs, first, size, source, num_kept, known, begin)


@threaded
def scan(job):
    """Results [tokens, value heads, value dim] of all chunks; changes states and rows."""
    num_keys, num_values, key_dim, value_dim = (
        job[_KEY_HEADS],
        job[_VALUE_HEADS],
        job[_KEY_DIM],
        job[_VALUE_DIM],
    )
    channels, taps = 2 * num_keys * key_dim + num_values * value_dim, job[_TAPS]
    inputs = carray(_floats(job[_INPUTS]), (job[_TOKENS], channels + 2 * num_values))
    weights = (
        carray(_floats(job[_CONV]), (channels, taps)),
        carray(_floats(job[_RATE]), num_values),
        carray(_floats(job[_BIAS]), num_values),
    )
    recurrent = carray(_floats(job[_RECURRENT]), (job[_SLOTS], num_values, key_dim, value_dim))
    rows = carray(_floats(job[_ROWS]), (job[_SLOTS], job[_SLOT_ROWS], channels + 2 * num_values))
    results = carray(_floats(job[_RESULTS]), (job[_TOKENS], num_values, value_dim))
    chunks = carray(_integers(job[_CHUNKS]), (job[_NUM_CHUNKS], 6))
    part = next_part(job)
    while part < job[_NUM_CHUNKS] * num_keys:
        _scan_head(chunks[part // num_keys], part % num_keys, inputs, weights, recurrent, rows, results)
        part = next_part(job)
