"""Reads tensors from a checkpoint's safetensors files, one or sharded with an index, and reports progress.

Tensors are memory-mapped: they are read when `get` is called. Errors are CheckpointErrors that name the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend.errors import CheckpointError
from backend.models.weight_files import weight_files
from backend.quant.stored import FLOATS


class WeightReader:
    """Gives tensors by name and checks their shapes. A context manager."""

    def __init__(self, directory: str | Path, on_progress: Callable[[float], None] | None = None) -> None:
        self._directory = Path(directory)
        self._on_progress = on_progress
        self._files: dict[str, Any] = {}  # tensor name → open file
        self._paths: dict[str, Path] = {}
        self._put: dict[str, Tensor] = {}
        self._read: set[str] = set()  # names in files; rounding reads some of them again
        for path in weight_files(self._directory):
            opened = _open(path)
            for name in opened.keys():  # noqa: SIM118 - not a dict
                self._files[name] = opened
                self._paths[name] = path

    def __enter__(self) -> WeightReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()  # closes the files
        self._put.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype of a tensor. Raises CheckpointError."""
        return self._load(name)[:0].dtype

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor as stored. Raises CheckpointError if it is missing, has another shape or is no float."""
        found = self.shape(name)
        if found is not None and found != shape:
            raise self.error(
                name,
                f"has shape {list(found)}, config.json implies {list(shape)}; the files belong to different "
                "checkpoints",
            )
        return self.read(name, FLOATS)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None where there is none of this name."""
        if name in self._put:
            return tuple(self._put[name].shape)
        return tuple(self._files[name].get_slice(name).get_shape()) if name in self._files else None

    def read(self, name: str, dtypes: Collection[torch.dtype]) -> Tensor:
        """The tensor as stored. Raises CheckpointError if it is missing or has none of these dtypes."""
        tensor = self._load(name)
        if tensor.dtype not in dtypes:
            expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise self.error(name, f"is {tensor.dtype}, expected one of {expected}")
        if name in self._files:
            self._read.add(name)
        if self._on_progress is not None:
            self._on_progress(len(self._read) / len(self._files))
        return tensor

    def error(self, name: str, problem: str) -> CheckpointError:
        """The error about a tensor, with the file that it should be in."""
        return CheckpointError(
            f"{self._paths.get(name, self._directory)}: {name!r} {problem}; download it again, or "
            "use the unquantised checkpoint"
        )

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Give these from now on, whatever the files hold."""
        self._put.update(tensors)

    def _load(self, name: str) -> Tensor:
        if name in self._put:
            return self._put[name]
        if name not in self._files:
            raise CheckpointError(
                f"{self._directory} has no tensor {name!r}, which its architecture needs; "
                "the download is incomplete or the architecture in config.json is wrong"
            )
        try:
            tensor: Tensor = self._files[name].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self._paths[name]}: {name!r} cannot be read ({error}); download it again"
            ) from None
        return tensor


def _open(path: Path) -> Any:  # noqa: ANN401 - safetensors exports no type for it
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a complete safetensors file ({error}); the download broke off, download it again"
        ) from None
