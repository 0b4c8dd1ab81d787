"""Counts where the host would wait for a device: calls that read a tensor's values, seen on the CPU too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_READS: dict[object, str] = {
    Tensor.tolist: "tolist",
    Tensor.item: "item",
    Tensor.numpy: "numpy",
    Tensor.cpu: "cpu",
    Tensor.__bool__: "bool",
    Tensor.__int__: "int",
    Tensor.__float__: "float",
    Tensor.__index__: "index",
    # The shapes of their results depend on values.
    torch.nonzero: "nonzero",
    Tensor.nonzero: "nonzero",
    torch.unique: "unique",
    Tensor.unique: "unique",
    torch.unique_consecutive: "unique_consecutive",
    torch.masked_select: "masked_select",
}


class Waits(TorchFunctionMode):
    """While it is entered, `reads` counts them by name. Indexing by a mask of booleans is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Count and call."""
        if func in _READS:
            self.reads[_READS[func]] += 1
        return func(*args, **(kwargs or {}))
