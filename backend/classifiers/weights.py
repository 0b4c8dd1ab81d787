"""Reads and writes the shipped weights: one safetensors file and a card with its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

Tensor = NDArray[Any]


class WeightsError(Exception):
    """Shipped weights are missing, broken or not those that were trained."""


def read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file and the SHA-256 of its bytes, which the card beside it must name.

    Raises WeightsError for a missing, broken or exchanged file.
    """
    card_path = path.with_suffix(".json")
    try:
        data = path.read_bytes()
        expected = json.loads(card_path.read_text("utf-8"))["sha256"]
    except (OSError, ValueError, KeyError) as error:
        raise WeightsError(
            f"{str(error)!r} while reading {str(path)!r}: install the package again, or train again, which "
            "writes both files."
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected:
        raise WeightsError(
            f"{str(path)!r} has SHA-256 {digest[:12]}…, but its card says {str(expected)[:12]}…: "
            "install the package again, or train again, which writes both."
        )
    try:
        return load(data), digest
    except SafetensorError as error:
        raise WeightsError(f"{str(path)!r} is no safetensors file: install the package again.") from error


def stamp(path: Path) -> tuple[int, int]:
    """Changes when a file is written again, for what is kept of it; (0, 0) without the file."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def read_card(path: Path) -> dict[str, Any]:
    """What the training run wrote about a weights file. Raises WeightsError."""
    card_path = path.with_suffix(".json")
    try:
        card = json.loads(card_path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{str(card_path)!r} cannot be read ({error}): copy it beside the weights."
        ) from None
    if not isinstance(card, dict):
        raise WeightsError(f"{str(card_path)!r} is no card of weights: train again, which writes both.")
    return card


def replace_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Change some tensors of a file, and the digest on its card. Raises WeightsError."""
    found, _ = read_weights(path)
    card = read_card(path)
    del card["sha256"]
    write_weights(path, {**found, **tensors}, card)


def write_weights(path: Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write the tensors, and the card with their digest."""
    data = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    path.write_bytes(data)
    document = {"sha256": hashlib.sha256(data).hexdigest(), **card}
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
