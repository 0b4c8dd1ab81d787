"""What the readers of all formats share: finding the format of a module, unpacking of words, checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend.config import WeightFormat
from backend.errors import CheckpointError
from backend.quant.schemes import QuantizedWeight

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_MAX_SCALE = 2.0**110
"""Far above any scale that a quantiser writes: products with values stay finite in float32."""

Shape = tuple[int, ...]


class Tensors(Protocol):
    """A checkpoint's tensors by name."""

    def shape(self, name: str) -> Shape | None:
        """None where there is no such tensor."""
        ...

    def read(self, name: str, dtypes: Collection[torch.dtype]) -> Tensor:
        """The tensor as stored. Raises CheckpointError unless its dtype is one of these."""
        ...

    def error(self, name: str, problem: str) -> CheckpointError:
        """The error about this tensor, with its file and a remedy."""
        ...


@dataclass(frozen=True, slots=True)
class StoredModule:
    """One module's tensors and the format that they have."""

    tensors: Tensors
    name: str
    shape: tuple[int, int]  # N, K
    format: WeightFormat
    shapes: Mapping[str, Shape]  # ending of a tensor's name → shape

    def read(self, ending: str, *dtypes: torch.dtype) -> Tensor:
        """The tensor with this ending, which is there."""
        return self.tensors.read(self.name + ending, dtypes).reshape(self.shapes[ending])

    def error(self, ending: str, problem: str) -> CheckpointError:
        """The error about the tensor with this ending."""
        return self.tensors.error(self.name + ending, problem)

    def integers(
        self, values: Tensor, scales: Tensor, zeros: Tensor | None, groups: str | None = None
    ) -> QuantizedWeight:
        """The record of unsigned `values` [N, K] and `zeros`, uint8; the tensor `groups` has columns'."""
        middle = 1 << (self.format.bits - 1)
        by_column = None if groups is None else self._order(groups)
        if by_column is not None:
            values = values[:, by_column]
        if zeros is not None:
            zeros = (zeros - middle).view(torch.int8)
        return self.record((values - middle).view(torch.int8), scales, zeros, by_column)

    def record(
        self, values: Tensor, scales: Tensor, zeros: Tensor | None = None, order: Tensor | None = None
    ) -> QuantizedWeight:
        """The record; `scales` and `zeros` are as large as the format's number of blocks."""
        (n, k), (rows, columns) = self.shape, self.format.block
        if zeros is not None:
            zeros = zeros.contiguous() if zeros.count_nonzero() else None
        if not rows:  # one scale for all: a scale for each row can be stacked
            scales, zeros = scales.expand(n, 1), None if zeros is None else zeros.expand(n, 1)
        block = (rows or 1, min(columns, k) or k)
        parts = values.contiguous(), scales.contiguous(), block, zeros, order
        return QuantizedWeight(self.format.scheme, *parts, self.format.rounds_inputs)

    def scales(self, ending: str) -> Tensor:
        """The scales in float32, checked; bytes are exponents, E8M0."""
        stored = self.read(ending, *FLOATS, torch.uint8, torch.float8_e8m0fnu)
        scales = (stored.view(torch.float8_e8m0fnu) if stored.dtype == torch.uint8 else stored).float()
        if not ((scales >= 0) & (scales <= _MAX_SCALE)).all():
            raise self.error(ending, "holds scales that are negative, infinite or not numbers")
        return scales

    def _order(self, ending: str) -> Tensor | None:
        """Columns in the order of their groups; None: they lie so. The tensor is the group of each column."""
        if self.tensors.shape(self.name + ending) is None:
            return None
        groups = self.tensors.read(self.name + ending, (torch.int32, torch.int64)).long()
        k = self.shape[1]
        ascending = torch.arange(k) // (self.format.block[1] or k)
        none = torch.full_like(ascending, -1)
        if torch.equal(groups, ascending) or torch.equal(groups, none):
            return None
        found, order = groups.sort(stable=True)
        if not torch.equal(found, ascending):
            raise self.error(ending, f"does not give each group its {self.format.block[1]} columns")
        return order


def find_format(
    tensors: Tensors,
    module: str,
    shape: tuple[int, int],
    formats: Collection[WeightFormat],
    shapes_of: Callable[[WeightFormat, Shape], Mapping[str, Shape]],
) -> StoredModule:
    """The first of the formats whose tensors have these shapes; sizes of 1 do not matter.

    `shapes_of` gets a format and its number of blocks. Raises CheckpointError where none has.
    """
    problem = tensors.error(module, "is quantised, but config.json describes no quantised weights")
    for each in formats:
        (n, k), (rows, columns) = shape, each.block
        shapes = shapes_of(each, (-(-n // rows) if rows else 1, -(-k // columns) if columns else 1))
        wrong = [end for end, size in shapes.items() if _wide(tensors.shape(module + end)) != _wide(size)]
        if wrong:
            found, wanted = tensors.shape(module + wrong[0]), list(shapes[wrong[0]])
            has = "is missing" if found is None else f"has shape {list(found)}"
            problem = tensors.error(module + wrong[0], f"{has}, config.json implies {wanted}")
        elif rows == 1 and columns and k > columns and k % columns:
            problem = tensors.error(module, f"has {k} columns, which groups of {columns} do not divide")
        else:
            return StoredModule(tensors, module, shape, each, shapes)
    raise problem


def num_words(count: int, stored: WeightFormat) -> int:
    """Words of 32 bits for this many values."""
    return -(-count * stored.bits // 32)


def unpack(words: Tensor, bits: int) -> Tensor:
    """The unsigned values of 4 or 8 bits in words, lowest bits first: [R, W] → uint8 [R, W * n]."""
    values = words.contiguous().view(torch.uint8)
    if bits == 8:
        return values
    return torch.stack((values & 15, values >> 4), -1).flatten(-2)


def _wide(shape: Shape | None) -> Shape | None:
    return None if shape is None else tuple(size for size in shape if size != 1)
