"""Counts where the host would wait for a device, or copy to it: seen on the CPU too.

The host waits where it reads a tensor's values. It copies where a tensor is made of the host's data.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
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

_COPIES = ("tensor", "as_tensor", "asarray", "from_numpy")  # which torch tells no mode about
_unseen = 0
_INDEXED = (Tensor.__getitem__, Tensor.__setitem__)


class Waits(TorchFunctionMode):
    """While it is entered, `reads` and `copies` count them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self._makers = {name: getattr(torch, name) for name in _COPIES}

    def __enter__(self) -> Waits:
        """Begin to count."""
        for name, make in self._makers.items():
            setattr(torch, name, functools.partial(self._make, name, make))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop counting."""
        super().__exit__(*error)
        for name, make in self._makers.items():
            setattr(torch, name, make)

    def _make(self, name: str, make: Callable[..., Tensor], *args: object, **kwargs: object) -> Tensor:
        if not _unseen:
            self.copies[name] += 1
        return make(*args, **kwargs)

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
        elif func in _INDEXED:
            for index in args[1] if isinstance(args[1], tuple) else (args[1],):
                if isinstance(index, Tensor) and index.dtype is torch.bool:
                    self.reads["mask"] += 1
                elif isinstance(index, list | np.ndarray):
                    self.copies["list"] += 1
        return func(*args, **(kwargs or {}))


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in which nothing is counted."""

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> object:
        global _unseen
        _unseen += 1
        try:
            with torch._C.DisableTorchFunction():
                return function(*args, **kwargs)
        finally:
            _unseen -= 1

    return called


@contextlib.contextmanager
def replaced(function: Callable[..., Any], by: Callable[..., Any]) -> Iterator[None]:
    """Every module that has imported the function by its name has the other one."""
    users = [
        module
        for module in list(sys.modules.values())
        if getattr(module, function.__name__, None) is function
    ]
    for module in users:
        setattr(module, function.__name__, by)
    try:
        yield
    finally:
        for module in users:
            setattr(module, function.__name__, function)
