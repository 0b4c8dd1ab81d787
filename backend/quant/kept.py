"""Rounded weights, kept in a file so that they are computed once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

logger = logging.getLogger(__name__)

MOST_KEPT = 8
"""Files in a folder; when one more is written, the one that was used longest ago is removed."""


@dataclass(frozen=True, slots=True)
class RoundedWeights:
    """Tensors by name, and what was measured while they were made."""

    tensors: dict[str, Tensor]
    errors: list[float]  # by layer, relative


class KeptWeights:
    """A file in `folder`, named by what it was made of; `folder` "" keeps nothing."""

    def __init__(self, folder: str, revision: str) -> None:
        self._path = Path(folder, f"{revision}.safetensors") if folder else None
        self._problem: Exception | None = None  # why nothing can be written; what is there can be read

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file's lock: of several engines one computes, the others wait and read."""
        lock = None
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                lock = FileLock(self._path.with_suffix(".lock"))
                lock.acquire()
        except (OSError, NotImplementedError) as error:
            lock, self._problem = None, error
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def read(self) -> RoundedWeights | None:
        """What was kept; None where there is nothing, or it is damaged."""
        if self._path is None:
            return None
        try:
            if not self._path.exists():
                return None
            with safe_open(self._path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
                facts = json.loads(file.metadata()["penstock"])
            if facts["sha256"] == _digest(tensors):
                with suppress(OSError):  # a folder that is only read
                    os.utime(self._path)
                return RoundedWeights(tensors, [float(error) for error in facts["errors"]])
        except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError):
            pass
        logger.warning("%s is damaged or cannot be read: computing the rounded weights again", self._path)
        return None

    def write(self, weights: RoundedWeights) -> None:
        """Keep them; the file appears whole or not at all."""
        if self._path is None:
            return
        part = self._path.with_suffix(".part")
        facts = json.dumps({"sha256": _digest(weights.tensors), "errors": weights.errors})
        try:
            if self._problem is not None:
                raise self._problem
            save_file(weights.tensors, part, {"penstock": facts})
            os.replace(part, self._path)
            self._remove_oldest(self._path.parent)
        except (OSError, NotImplementedError, SafetensorError) as error:
            with suppress(OSError):
                part.unlink()
            logger.warning("rounded weights cannot be kept, so each start computes them: %s", error)

    def _remove_oldest(self, folder: Path) -> None:
        """Remove files beyond MOST_KEPT; who is reading one keeps it."""
        used: list[tuple[int, Path]] = []
        for path in folder.glob("*.safetensors"):
            with suppress(OSError):  # another engine removed it
                used.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(used)[:-MOST_KEPT]:
            with suppress(OSError):
                path.unlink()


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.view(torch.uint8).numpy().data)
    return digest.hexdigest()
