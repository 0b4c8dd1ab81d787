"""Linear with weights of 4 and 8 bits in Triton: split along K for few rows, added in a fixed order.

The grid and the order of sums follow from N and K alone, so that a row's bits don't depend on its company
(of a class of row counts). Many rows are rounded to 8 bits themselves, each 128 columns by their largest.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.kv_write.kernel import narrowed
from backend.kernels.launch import architecture, blocks

_BYTES_UNIT = 128
"""Columns that weights of 8 bits are scaled by, and read in."""

_PROGRAMS = 512
"""Programs to launch for one block of rows: several for each multiprocessor."""

_SOME_ROWS = 256
"""Up to this many rows that are rounded are split along K as well."""

_BLOCK = 1024
_ROUNDED_UNITS = 16
_LARGEST = {torch.int8: 127.0, torch.uint8: 448.0}


def multiply(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, group: int, bias: Tensor | None
) -> Tensor:
    """x [T, K] times the weight [N, K] in `codes` [K / 64, N, 32] → [T, N] in x.dtype.

    `scales` and `zeros` [groups, N]; `group` columns have one scale: a multiple of 32.
    """
    (rows, features), (units, columns, _) = x.shape, codes.shape
    x = x.contiguous()
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    options = blocks("linear", "int4", x.dtype).options()
    grid, each = _split(y, units, options, _PROGRAMS)
    parts = _parts(y, grid)
    _multiply_int4[grid](
        parts, x, codes, scales, zeros, rows, columns, features, units, each, group, **options
    )
    return _sum(y, parts, bias)


def multiply_bytes(
    x: Tensor, values: Tensor, scales: Tensor, block: tuple[int, int], bias: Tensor | None
) -> Tensor:
    """x [T, K] times the weight [N, K] of int8, or of the bytes of float8_e4m3fn → [T, N] in x.dtype.

    One of `scales` [ceil(N / rows), ceil(K / columns)] for each `block` = (rows, columns) of `values` [N, K];
    columns: a multiple of 128, or K.
    """
    (rows, features), columns = x.shape, len(values)
    x = x.contiguous()
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    options = blocks("linear", "bytes", x.dtype).options()
    grid, each = _split(y, triton.cdiv(features, _BYTES_UNIT), options, _PROGRAMS)
    parts = _parts(y, grid)
    sizes = rows, columns, features, each, *block, scales.shape[1]
    constants = {"BYTE_UNIT": byte_unit(values.dtype), "BLOCK_K": _BYTES_UNIT}
    _multiply_bytes[grid](parts, x, values, scales, *sizes, **constants, **options)
    return _sum(y, parts, bias)


def byte_unit(dtype: torch.dtype) -> int:
    """What the numbers that `widened` gives of a weight's values are multiplied by."""
    return 1 if dtype is torch.int8 or can_round(dtype) else 256


def can_round(dtype: torch.dtype) -> bool:
    """Whether this GPU multiplies weights of `dtype`, int8 or the bytes of float8, by numbers like them."""
    return not 0 < architecture() < (80 if dtype is torch.int8 else 89)  # Triton's int8 needs 80


def multiply_rounded(
    x: Tensor, values: Tensor, scales: Tensor, block: tuple[int, int], bias: Tensor | None
) -> Tensor:
    """The same as multiply_bytes, with x rounded to 8 bits like the weight's."""
    (rows, features), columns = x.shape, len(values)
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    codes, factors = _rounded(x.contiguous(), values.dtype)
    if values.dtype is torch.uint8:
        codes, values = (each.view(torch.float8_e4m3fn) for each in (codes, values))
    is_few = rows <= _SOME_ROWS
    options = blocks("linear", "rounded few" if is_few else "rounded", values.dtype).options()
    grid, each = _split(y, len(factors), options, _PROGRAMS // 4 if is_few else 1)
    is_whole = grid[2] == 1  # then nothing as large as y is needed beside it
    parts = y if is_whole else _parts(y, grid)
    sizes = rows, columns, features, each, *block, scales.shape[1]
    constants = {"HAS_BIAS": is_whole and bias is not None, "BLOCK_K": _BYTES_UNIT}
    matrices = codes, factors, values, scales, scales if bias is None else bias
    _multiply_rounded[grid](parts, *matrices, *sizes, **constants, **options)
    return y if is_whole else _sum(y, parts, bias)


def _rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of 8 bits [T, K], and what each 128 of a row are multiplied by [K / 128, T]."""
    (rows, features), units = x.shape, triton.cdiv(x.shape[1], _BYTES_UNIT)
    codes = torch.empty(rows, features, dtype=dtype, device=x.device)
    factors = torch.empty(units, rows, dtype=torch.float32, device=x.device)
    constants = {"LARGEST": _LARGEST[dtype], "UNITS": _ROUNDED_UNITS, "UNIT": _BYTES_UNIT}
    _round[rows, triton.cdiv(units, _ROUNDED_UNITS)](codes, factors, x, rows, features, units, **constants)
    return codes, factors


def _split(y: Tensor, units: int, options: dict[str, int], programs: int) -> tuple[tuple[int, int, int], int]:
    """The grid, whose last size is the number of splits, and units of a split.

    `programs`: about how many for one block of rows.
    """
    rows, columns = y.shape
    across = triton.cdiv(columns, options["BLOCK_N"])
    each = triton.cdiv(units, max(1, min(units // 4, programs // across)))
    return (triton.cdiv(rows, options["BLOCK_M"]), across, triton.cdiv(units, each)), each


def _parts(y: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """Memory for the splits' sums [splits, T, N]."""
    return torch.empty(grid[2], *y.shape, dtype=torch.float32, device=y.device)


def _sum(y: Tensor, parts: Tensor, bias: Tensor | None) -> Tensor:
    """Fill y [T, N] with bias + Σ parts."""
    (splits, rows, columns), start = parts.shape, parts if bias is None else bias
    _add[rows, triton.cdiv(columns, _BLOCK)](
        y, parts, start, rows, columns, splits, HAS_BIAS=bias is not None, BLOCK=_BLOCK
    )
    return y


def dequantize(
    codes: Tensor, scales: Tensor, zeros: Tensor, group: int, features: int, dtype: torch.dtype
) -> Tensor:
    """The weight [N, K] of such codes, in `dtype`."""
    units, columns, _ = codes.shape
    weight = torch.empty(columns, features, dtype=dtype, device=codes.device)
    if weight.numel():
        grid = triton.cdiv(columns, 64), units
        _dequantize[grid](weight, codes, scales, zeros, columns, features, group, BLOCK_N=64)
    return weight


def dequantize_bytes(values: Tensor, scales: Tensor, block: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The weight [N, K] of such values, in `dtype`."""
    columns, features = values.shape
    weight = torch.empty(columns, features, dtype=dtype, device=values.device)
    if weight.numel():
        grid = triton.cdiv(columns, 64), triton.cdiv(features, _BYTES_UNIT)
        sizes = columns, features, *block, scales.shape[1]
        constants = {"BYTE_UNIT": byte_unit(values.dtype), "BLOCK_N": 64, "BLOCK_K": _BYTES_UNIT}
        _dequantize_bytes[grid](weight, values, scales, *sizes, **constants)
    return weight


@triton.jit
def widened(x, kind: tl.constexpr, BYTE_UNIT: tl.constexpr):
    """Int8, or bytes of float8_e4m3fn, as `kind`, exactly, by way of float32.

    With a BYTE_UNIT of 256 float8 is widened from its bits, for GPUs that do not know it, and the results are
    1/256 of it: float16 has the same bits with exponents of a larger bias.
    """
    if x.dtype == tl.uint8:
        if BYTE_UNIT == 1:
            x = x.to(tl.float8e4nv, bitcast=True).to(tl.float16)
        else:
            bits = (x.to(tl.int8, bitcast=True).to(tl.int16) << 7) & -16512  # s0eeeemmm0000000
            x = bits.to(tl.float16, bitcast=True)
    return x.to(tl.float32).to(kind)


@triton.jit
def _halves(codes, zeros, scales, unit, n, columns, group):
    """A unit's integers [BLOCK_N, 32] less their zeros, twice, and their scales [BLOCK_N]."""
    byte = tl.arange(0, 32)
    is_own = n < columns
    place = (unit * columns + n).to(tl.int64)[:, None] * 32 + byte[None, :]
    found = tl.load(codes + place, mask=is_own[:, None], other=0)
    first = (unit * 64) // group * columns + n
    second = (unit * 64 + 32) // group * columns + n
    low_zero = tl.load(zeros + first, mask=is_own, other=0).to(tl.int32)
    high_zero = tl.load(zeros + second, mask=is_own, other=0).to(tl.int32)
    low = (found & 15).to(tl.int32) - low_zero[:, None]
    high = (found >> 4).to(tl.int32) - high_zero[:, None]
    low_scale = tl.load(scales + first, mask=is_own, other=0.0).to(tl.float32)
    high_scale = tl.load(scales + second, mask=is_own, other=0.0).to(tl.float32)
    return low, high, low_scale, high_scale


@triton.jit
def _multiply_int4(
    parts,
    x,
    codes,
    scales,
    zeros,
    rows,
    columns,
    features,
    units,
    each,
    group,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One split's sums of BLOCK_M rows and BLOCK_N columns. Grid (T / BLOCK_M, N / BLOCK_N, splits).

    Integers are multiplied, which 16 bits hold exactly; each half unit's sum is scaled in float32. Weights
    are the left operand: tensor cores read that from registers.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k = tl.arange(0, 32)
    is_row = (row < rows)[None, :]
    source = x + row.to(tl.int64)[None, :] * features + k[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    none = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for unit in range(split * each, tl.minimum(split * each + each, units)):
        low, high, low_scale, high_scale = _halves(codes, zeros, scales, unit, n, columns, group)
        left = features - unit * 64
        own = tl.load(source + unit * 64, mask=is_row & (k < left)[:, None], other=0.0)
        total += (
            tl.dot(low.to(tl.float32).to(own.dtype), own, none, input_precision="ieee") * low_scale[:, None]
        )
        own = tl.load(source + unit * 64 + 32, mask=is_row & (k + 32 < left)[:, None], other=0.0)
        total += (
            tl.dot(high.to(tl.float32).to(own.dtype), own, none, input_precision="ieee") * high_scale[:, None]
        )
    target = parts + (split * rows + row).to(tl.int64)[None, :] * columns + n[:, None]
    tl.store(target, total, mask=is_row & (n < columns)[:, None])


@triton.jit
def _multiply_bytes(
    parts,
    x,
    values,
    scales,
    rows,
    columns,
    features,
    each,
    height,
    width,
    groups,
    BYTE_UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One split's sums of BLOCK_M rows and BLOCK_N columns. Grid (T / BLOCK_M, N / BLOCK_N, splits).

    8 bits are widened exactly; the sum of each BLOCK_K columns of K is scaled in float32.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k = tl.arange(0, BLOCK_K)
    is_row, is_column = (row < rows)[None, :], n < columns
    source = x + row.to(tl.int64)[None, :] * features + k[:, None]
    matrix = values + n.to(tl.int64)[:, None] * features + k[None, :]
    own_scales = scales + n // height * groups
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    none = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for unit in range(split * each, tl.minimum(split * each + each, tl.cdiv(features, BLOCK_K))):
        begin = unit * BLOCK_K
        is_feature = k < features - begin
        found = tl.load(matrix + begin, mask=is_column[:, None] & is_feature[None, :], other=0)
        own = tl.load(source + begin, mask=is_row & is_feature[:, None], other=0.0)
        scale = tl.load(own_scales + begin // width, mask=is_column, other=0.0) * BYTE_UNIT
        found = widened(found, own.dtype, BYTE_UNIT)
        total += tl.dot(found, own, none, input_precision="ieee") * scale[:, None]
    target = parts + (split * rows + row).to(tl.int64)[None, :] * columns + n[:, None]
    tl.store(target, total, mask=is_row & is_column[:, None])


@triton.jit
def _round(
    codes,
    factors,
    x,
    rows,
    features,
    units,
    LARGEST: tl.constexpr,
    UNITS: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Numbers of 8 bits of one row's units of UNIT columns, and their factors. Grid (T, units / UNITS).

    A unit that is not finite gets a factor of NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    column = unit[:, None] * UNIT + tl.arange(0, UNIT)[None, :]
    place = row * features + column
    own = tl.load(x + place, mask=column < features, other=0.0).to(tl.float32)
    top = tl.max(tl.abs(own), 1)
    scale = tl.maximum(tl.div_rn(top, top * 0.0 + LARGEST), 1e-30)
    over = tl.broadcast_to(scale[:, None], own.shape)
    kind = codes.dtype.element_ty
    tl.store(codes + place, narrowed(tl.div_rn(own, over), kind, LARGEST), mask=column < features)
    factor = scale + tl.sum(own * 0.0, 1)
    tl.store(factors + unit.to(tl.int64) * rows + row, factor, mask=unit < units)


@triton.jit
def _multiply_rounded(
    y,
    codes,
    factors,
    values,
    scales,
    bias,
    rows,
    columns,
    features,
    each,
    height,
    width,
    groups,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One split's sums of BLOCK_M rows and BLOCK_N columns. Grid (T / BLOCK_M, N / BLOCK_N, splits).

    The sum of each BLOCK_K columns of K is scaled, and added, in float32.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k = tl.arange(0, BLOCK_K)
    is_row, is_column = row < rows, n < columns
    source = codes + row.to(tl.int64)[:, None] * features + k[None, :]
    matrix = values + n.to(tl.int64)[None, :] * features + k[:, None]
    own_scales = scales + n // height * groups
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for unit in range(split * each, tl.minimum(split * each + each, tl.cdiv(features, BLOCK_K))):
        begin = unit * BLOCK_K
        is_feature = k < features - begin
        own = tl.load(source + begin, mask=is_row[:, None] & is_feature[None, :], other=0.0)
        found = tl.load(matrix + begin, mask=is_column[None, :] & is_feature[:, None], other=0.0)
        factor = tl.load(factors + unit * rows + row, mask=is_row, other=0.0)
        scale = tl.load(own_scales + begin // width, mask=is_column, other=0.0)
        total += tl.dot(own, found).to(tl.float32) * (factor[:, None] * scale[None, :])
    if HAS_BIAS:
        total += tl.load(bias + n, mask=is_column, other=0.0).to(tl.float32)[None, :]
    target = y + (split * rows + row).to(tl.int64)[:, None] * columns + n[None, :]
    tl.store(target, total.to(y.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _add(y, parts, bias, rows, columns, splits, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """y = bias + Σ parts, in the order of splits. Grid (T, N / BLOCK); parts [splits, T, N]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < columns
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(parts + (split * rows + row) * columns + column, mask=is_column, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, total.to(y.dtype.element_ty), mask=is_column)


@triton.jit
def _dequantize(weight, codes, scales, zeros, columns, features, group, BLOCK_N: tl.constexpr):
    """The weight [N, K]. Grid (N / BLOCK_N, units)."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    unit = tl.program_id(1)
    low, high, low_scale, high_scale = _halves(codes, zeros, scales, unit, n, columns, group)
    k = unit * 64 + tl.arange(0, 32)
    target = weight + n.to(tl.int64)[:, None] * features + k[None, :]
    kind = weight.dtype.element_ty
    is_own = (n < columns)[:, None]
    tl.store(target, (low * low_scale[:, None]).to(kind), mask=is_own & (k < features)[None, :])
    tl.store(target + 32, (high * high_scale[:, None]).to(kind), mask=is_own & (k + 32 < features)[None, :])


@triton.jit
def _dequantize_bytes(
    weight,
    values,
    scales,
    columns,
    features,
    height,
    width,
    groups,
    BYTE_UNIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The weight [N, K]. Grid (N / BLOCK_N, K / BLOCK_K)."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    place = n.to(tl.int64)[:, None] * features + k[None, :]
    mask = (n < columns)[:, None] & (k < features)[None, :]
    scale = tl.load(scales + n // height * groups + tl.program_id(1) * BLOCK_K // width, mask=n < columns)
    found = widened(tl.load(values + place, mask=mask, other=0), tl.float32, BYTE_UNIT)
    found = found * (scale * BYTE_UNIT)[:, None]
    tl.store(weight + place, found.to(weight.dtype.element_ty), mask=mask)
