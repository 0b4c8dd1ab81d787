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

from backend.config import ModelConfig
from backend.errors import CheckpointError
from backend.models.weight_files import weight_files
from backend.quant.checkpoint import read_quantized
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import FLOATS

_NEEDLESS = ("inv_freq", "q_scale", "k_scale", "v_scale")
"""Last parts of names of what is computed here: old checkpoints' angles, scales of keys and values."""


class WeightReader:
    """Gives tensors by name and checks their shapes. A context manager."""

    def __init__(
        self,
        directory: str | Path,
        on_progress: Callable[[float], None] | None = None,
        name_of: Callable[[str], str] = str,
        others: tuple[str, ...] = (),
    ) -> None:
        """`name_of`: a tensor's name in the files → the name under which it is given.

        `others`: how the names of tensors begin that `check_all_read` does not expect to be read.
        """
        self._others = others
        self._directory = Path(directory)
        self._on_progress = on_progress
        self._files: dict[str, Any] = {}  # tensor name → open file
        self._paths: dict[str, Path] = {}
        self._stored: dict[str, str] = {}  # tensor name → its name in the file
        self._put: dict[str, Tensor] = {}
        self._read: set[str] = set()  # names in files; rounding reads some of them again
        for path in weight_files(self._directory):
            opened = _open(path)
            for stored in opened.keys():  # noqa: SIM118 - not a dict
                name = name_of(stored)
                if self._stored.get(name, stored) != stored:
                    raise self.error(stored, f"is the same tensor as {self._stored[name]!r}")
                self._stored[name] = stored
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

    def finite(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The same, whose numbers are finite. Raises CheckpointError if one is not."""
        tensor = self.get(name, shape)
        if not all(bound.isfinite() for bound in torch.aminmax(tensor)):  # NaN is in both
            raise self.error(name, "holds a number that is not finite")
        return tensor

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None where there is none of this name."""
        if name in self._put:
            return tuple(self._put[name].shape)
        if name not in self._files:
            return None
        return tuple(self._files[name].get_slice(self._stored[name]).get_shape())

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
            f"{self._paths.get(name, self._directory)}: {self._stored.get(name, name)!r} {problem}; "
            "download it again, or use the unquantised checkpoint"
        )

    def check_all_read(self, *, is_quantized: bool) -> None:
        """Raise CheckpointError for a tensor that was not read: the model would be another without it.

        `is_quantized`: a weight that was read may have more beside it than its format needs.
        """
        modules = {name.rpartition(".")[0] for name in self._read} if is_quantized else set()
        for name, stored in self._stored.items():
            module, _, kind = name.rpartition(".")
            is_known = kind in _NEEDLESS or (module in modules and kind not in ("weight", "bias"))
            if name not in self._read and not is_known and not self._is_other(name):
                raise CheckpointError(
                    f"{self._paths[name]}: {stored!r} is a tensor that the architecture in config.json does "
                    "not have, so answers would be wrong; correct config.json, or choose another checkpoint"
                )

    def _is_other(self, name: str) -> bool:
        return any(each.startswith(self._others) for each in (name, self._stored[name]))

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
            tensor: Tensor = self._files[name].get_tensor(self._stored[name])
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self._paths[name]}: {self._stored[name]!r} cannot be read ({error}); download it again"
            ) from None
        return tensor


def read_weight(
    reader: WeightReader, name: str, shape: tuple[int, int], config: ModelConfig
) -> Tensor | QuantizedWeight:
    """A matrix as it is stored. Raises CheckpointError."""
    if config.quantization is not None:
        found = read_quantized(reader, name.removesuffix(".weight"), shape, config.quantization)
        if found is not None:
            return found
    return reader.get(name, shape)


def _open(path: Path) -> Any:  # noqa: ANN401 - safetensors exports no type for it
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a complete safetensors file ({error}); the download broke off, download it again"
        ) from None
