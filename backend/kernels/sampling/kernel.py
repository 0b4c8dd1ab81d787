"""Sampling in Triton: radix selection of the filters' thresholds, then the keyed draw.

Programs take BLOCK tokens of one row. Every sum is of integers, so its order does not matter: the result is
the same for any size of blocks and any order of programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks

_LEVELS = tl.constexpr(3)
_BITS = tl.constexpr(10)  # of a key for each level
_BINS = tl.constexpr(1024)
_LAST = tl.constexpr((1 << 30) - 1)  # the key of all tokens that weigh nothing
_BY_COUNT, _BY_MASS = tl.constexpr(0), tl.constexpr(1)  # the searches for top_k and top_p
_MOST_TOKENS = 1 << 20  # more weights of 2^43 could overflow 63 bits
_FEW_ROWS = 8


def sample(logits: Tensor, words: Tensor, has_random: bool, has_top_k: bool, has_top_p: bool) -> Tensor:
    """Token ids and soundness, [2, R] int64, of `logits` [R, V] with the parameters in `words` [R, 8] int32.

    A parameter that no row has may be left out; that saves launches.
    """
    num_rows, size = logits.shape
    assert logits.is_contiguous() and words.is_contiguous() and logits.dtype is torch.float32
    assert size < _MOST_TOKENS and words.shape == (num_rows, 8) and words.dtype is torch.int32
    options = blocks("sampling", "few" if num_rows <= _FEW_ROWS else "many", logits.dtype).options()
    num_blocks = triton.cdiv(size, options["BLOCK"])
    searches = [each.value for each, is_on in ((_BY_COUNT, has_top_k), (_BY_MASS, has_top_p)) if is_on]
    num_places = 2 * _LEVELS.value * num_rows if has_random and searches else 0
    sizes = [2 * num_rows, num_rows, num_rows * num_blocks, 2 * num_places, _BINS.value * num_places]
    result, tops, parts, states, sums = torch.split(
        torch.zeros(sum(sizes), dtype=torch.int64, device=logits.device), sizes
    )
    if num_rows:
        grid, rows = (num_rows, num_blocks), (logits, words, tops, sums, states, num_rows, size)
        _find_tops[grid](logits, tops, size, **options)
        if has_random:
            for search in searches:
                for level in range(_LEVELS.value):
                    _add_bins[grid](*rows, level, SEARCH=search, **options)
            _add_blocks[grid](*rows, parts, **options)
        _draw[num_rows,](*rows, parts, result, num_blocks, triton.next_power_of_2(num_blocks), **options)
    return result.view(2, num_rows)


def forbid(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """Add -inf in place to the tokens of `rows` [G] whose bits in `allowed` [G, V / 32] int32 are 0."""
    assert logits.is_contiguous() and allowed.is_contiguous() and allowed.dtype is torch.int32
    options = blocks("sampling", "many", logits.dtype).options()
    size = logits.shape[1]
    if len(rows):
        grid = (len(rows), triton.cdiv(size, options["BLOCK"]))
        _forbid[grid](logits, rows, allowed, size, allowed.shape[1], **options)


@triton.jit
def _forbid(logits, rows, allowed, size, num_words, BLOCK: tl.constexpr):
    """Grid (G, blocks)."""
    row = tl.load(rows + tl.program_id(0)).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(allowed + tl.program_id(0) * num_words + token // 32, mask=token < size, other=-1)
    is_forbidden = ((word >> (token % 32)) & 1) == 0
    place = logits + row * size + token
    own = tl.load(place, mask=is_forbidden, other=0.0)  # NaN stays NaN, and is seen
    tl.store(place, own + float("-inf"), mask=is_forbidden)


@triton.jit
def _find_tops(logits, tops, size, BLOCK: tl.constexpr):
    """The largest logit of each row, NaN before all, and its first token: one integer. Grid (R, blocks)."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(logits + row * size + token, mask=token < size, other=float("-inf"))
    bits = tl.where(own == own, own.to(tl.int32, bitcast=True), 0x7FC00000)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 0x80000000
    tl.atomic_max(tops + row, tl.max((ordered << 31) | (0x7FFFFFFF - token), 0), sem="relaxed")


@triton.jit
def _top(tops, row):
    """The largest logit of a row and its token."""
    packed = tl.load(tops + row)
    ordered = ((packed >> 31) - 0x80000000).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True), 0x7FFFFFFF - (packed & 0x7FFFFFFF)


@triton.jit
def _parameters(words, row, size):
    """temperature (0: greedy), top_k, whether there is a top_k, top_p, min_p of a row."""
    temperature = tl.load(words + row * 8 + 3).to(tl.float32, bitcast=True)
    temperature = tl.where(temperature > 0, tl.maximum(temperature, 1e-6), 0.0)
    top_k = tl.load(words + row * 8 + 4)
    top_p = tl.load(words + row * 8 + 5).to(tl.float32, bitcast=True)
    min_p = tl.load(words + row * 8 + 6).to(tl.float32, bitcast=True)
    return temperature, top_k, (top_k > 0) & (top_k < size), top_p, min_p


@triton.jit
def _keys(logits, tops, temperature, row, block, size, BLOCK: tl.constexpr):
    """How far logit / temperature is below the row's top, in steps of 2^-24: as fine as float32 weights."""
    token = block * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(logits + row * size + token, mask=token < size, other=float("-inf"))
    top, _ = _top(tops, row)
    steps = (tl.div_rn(top, temperature) - tl.div_rn(own, temperature)) * 16777216.0
    is_near = steps < 1073741824.0
    return tl.where(is_near, tl.where(is_near, steps, 0.0).to(tl.int32), _LAST)


@triton.jit
def _weights(keys):
    """e^(-key / 2^24) in units of 2^-43, rounded down: 2^43 for the top, 0 for the last key."""
    powers = keys.to(tl.int64) * 1549082005  # log2(e) · 2^30: powers of two in units of 2^-54
    fraction = ((powers >> 30) & 0xFFFFFF).to(tl.float32) * (1.0 / 16777216.0)
    return (tl.exp2(-fraction) * 8796093022208.0).to(tl.int64) >> tl.minimum(powers >> 54, 63)


@triton.jit
def _narrow(bins, prefix, rest):
    """One more digit of the key at which the sum reaches `rest`, and what is left of `rest` in its bin."""
    upto = tl.cumsum(tl.load(bins + tl.arange(0, _BINS)), 0)
    is_before = upto < rest
    digit = tl.minimum(tl.sum(is_before.to(tl.int32), 0), _BINS - 1)
    return prefix * _BINS + digit, rest - tl.max(tl.where(is_before, upto, 0), 0)


@triton.jit
def _found(sums, states, row, num_rows, is_on, SEARCH: tl.constexpr):
    """The last key that a search which has ended keeps."""
    key = tl.full((), _LAST, tl.int64)
    if is_on:
        place = (SEARCH * _LEVELS + _LEVELS - 1) * num_rows + row
        state = states + place * 2
        key, _ = _narrow(sums + place * _BINS, tl.load(state), tl.load(state + 1))
    return key


@triton.jit(do_not_specialize=["level"])
def _add_bins(
    logits,
    words,
    tops,
    sums,
    states,
    num_rows,
    size,
    level,
    SEARCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up tokens, or their weights, by one digit of their keys, under the digits found before.

    Grid (R, blocks). sums [2, levels, R, bins]; states [2, levels, R, 2]: the digits found and the rest.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature, top_k, has_top_k, top_p, _ = _parameters(words, row, size)
    is_on = has_top_k if SEARCH == _BY_COUNT else top_p < 1
    if (temperature == 0) | (is_on == 0):
        return
    place = (SEARCH * _LEVELS + level) * num_rows + row
    prefix, rest = tl.zeros((), tl.int64), top_k.to(tl.int64)
    if level > 0:
        before = place - num_rows
        bins = sums + before * _BINS
        if level > 1:
            prefix, rest = tl.load(states + before * 2), tl.load(states + before * 2 + 1)
        elif SEARCH == _BY_MASS:  # what top_k leaves counts
            mass = tl.sum(tl.load(bins + tl.arange(0, _BINS)), 0)
            rest = tl.maximum(tl.ceil(top_p.to(tl.float64) * mass.to(tl.float64)).to(tl.int64), 1)
        prefix, rest = _narrow(bins, prefix, rest)
        if block == 0:
            tl.store(states + place * 2, prefix)
            tl.store(states + place * 2 + 1, rest)
    keys = _keys(logits, tops, temperature, row, block, size, BLOCK)
    digits = keys >> (_BITS * (_LEVELS - 1 - level))
    is_own = (keys < _LAST) & ((digits >> _BITS) == prefix)
    amounts = tl.full((BLOCK,), 1, tl.int64)
    if SEARCH == _BY_MASS:
        is_own = is_own & (keys <= _found(sums, states, row, num_rows, has_top_k, _BY_COUNT))
        amounts = _weights(keys)
    own = sums + place * _BINS + (digits & (_BINS - 1))
    tl.atomic_add(own, amounts, mask=is_own, sem="relaxed")


@triton.jit
def _kept(logits, words, tops, sums, states, num_rows, size, row, block, BLOCK: tl.constexpr):
    """The weights of one block, 0 where a filter excludes the token."""
    temperature, _, has_top_k, top_p, min_p = _parameters(words, row, size)
    last = tl.minimum(
        _found(sums, states, row, num_rows, has_top_k, _BY_COUNT),
        _found(sums, states, row, num_rows, top_p < 1, _BY_MASS),
    )
    keys = _keys(logits, tops, temperature, row, block, size, BLOCK)
    weights = _weights(keys)
    return tl.where((keys <= last) & (weights >= (min_p * 8796093022208.0).to(tl.int64)), weights, 0)


@triton.jit
def _add_blocks(logits, words, tops, sums, states, num_rows, size, parts, BLOCK: tl.constexpr):
    """parts[row, block] = the sum of the block's kept weights. Grid (R, blocks)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(words + row * 8 + 3).to(tl.float32, bitcast=True) > 0:
        kept = _kept(logits, words, tops, sums, states, num_rows, size, row, block, BLOCK)
        tl.store(parts + row * tl.num_programs(1) + block, tl.sum(kept, 0))


@triton.jit
def _draw(
    logits,
    words,
    tops,
    sums,
    states,
    num_rows,
    size,
    parts,
    result,
    num_blocks,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The first token at which the sum of weights passes u · their sum, or the top one. Grid (R)."""
    row = tl.program_id(0).to(tl.int64)
    temperature, _, _, _, _ = _parameters(words, row, size)
    top, token = _top(tops, row)
    if temperature > 0:
        top = tl.div_rn(top, temperature)
        i = tl.arange(0, BLOCKS)
        upto = tl.cumsum(tl.load(parts + row * num_blocks + i, mask=i < num_blocks, other=0), 0)
        # u is 64 bits behind the point, so the upper half of the product is u · sum, rounded down.
        wanted = tl.umulhi(_uniform(words + row * 8), tl.max(upto, 0).to(tl.uint64)).to(tl.int64)
        is_before = upto <= wanted
        block = tl.minimum(tl.sum(is_before.to(tl.int32), 0), num_blocks - 1)
        kept = _kept(logits, words, tops, sums, states, num_rows, size, row, block, BLOCK)
        upto_token = tl.max(tl.where(is_before, upto, 0), 0) + tl.cumsum(kept, 0)
        drawn = block * BLOCK + tl.sum((upto_token <= wanted).to(tl.int32), 0)
        token = tl.minimum(drawn, size - 1).to(tl.int64)
    tl.store(result + row, token)
    tl.store(result + num_rows + row, (tl.abs(top) < float("inf")).to(tl.int64))


@triton.jit
def _uniform(words):
    """(top 48 bits of the hash of seed and position + 1/2) · 2^16, as 64 bits behind the point."""
    low, high = tl.load(words).to(tl.uint32, bitcast=True), tl.load(words + 1).to(tl.uint32, bitcast=True)
    seed = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    mixed = _mix(_mix(seed) + tl.load(words + 2).to(tl.uint64))
    return ((mixed >> 16) << 16) | 0x8000


@triton.jit
def _mix(x):
    """SplitMix64."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
