"""Where drafters keep their weights, and whether those fit the target. Plain Python, for the gateway too."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from backend.errors import CheckpointError
from backend.models.checkpoint_config import read_json_object

DRAFT_MODEL = "draft_model"
HEADS: tuple[str, ...] = ("eagle", "medusa", "mixture_of_attentions")
"""Drafters that are trained on one target's hidden states; their folders lie in the target's `heads`."""

MODEL_DRAFTERS = (DRAFT_MODEL, *HEADS)
"""All that have weights."""

_WEIGHTS, _CONFIG, _TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


def default_folder(name: str, checkpoint: Path) -> Path:
    """Where a drafter of this target lies unless said otherwise. Raises CheckpointError."""
    if name not in HEADS:
        raise CheckpointError(
            f"drafter {name!r} needs a checkpoint of its own; give its folder as "
            f"speculative.drafters.{name}.path"
        )
    return checkpoint / "heads" / name


def check_folder(name: str, checkpoint: Path, folder: Path) -> None:
    """Raise CheckpointError unless `folder` holds weights of this drafter for the target in `checkpoint`."""
    own = _config(name, folder)
    if name == DRAFT_MODEL:
        _check_vocabulary(checkpoint, folder, _vocab_size(own))
    else:
        _check_head(name, checkpoint, folder, own)


def _config(name: str, folder: Path) -> dict[str, Any]:
    try:
        return read_json_object(folder / _CONFIG)
    except CheckpointError as error:
        raise CheckpointError(f"drafter {name!r} (speculative.drafters.{name}.path): {error}") from None


def _check_vocabulary(checkpoint: Path, folder: Path, vocab_size: object) -> None:
    """Both models must mean the same by a token id."""
    remedy = "choose a draft model of the same family"
    wanted = _vocab_size(read_json_object(checkpoint / _CONFIG))
    if vocab_size != wanted:
        raise CheckpointError(
            f"drafter {DRAFT_MODEL!r}: {folder} has a vocabulary of {vocab_size!r} tokens, {checkpoint} one "
            f"of {wanted!r}; {remedy}"
        )
    files = [path / _TOKENIZER for path in (checkpoint, folder)]
    if all(path.is_file() for path in files) and _vocabulary(files[0]) != _vocabulary(files[1]):
        raise CheckpointError(
            f"drafter {DRAFT_MODEL!r}: {files[1]} and {files[0]} hold different vocabularies; {remedy}"
        )


def _vocab_size(config: dict[str, Any]) -> object:
    """The decoder's, which may be one part of several."""
    text = config.get("text_config")
    return text.get("vocab_size") if isinstance(text, dict) else config.get("vocab_size")


def _vocabulary(path: Path) -> object:
    model = read_json_object(path).get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise CheckpointError(f"{path} holds no vocabulary; download it again")
    return model["vocab"]


def _check_head(name: str, checkpoint: Path, folder: Path, own: dict[str, Any]) -> None:
    """A head must be of this kind, and have been trained on these very weights."""
    if own.get("drafter") != name:
        raise CheckpointError(
            f"drafter {name!r}: {folder / _CONFIG} is one of {own.get('drafter')!r}; give the folder of a "
            f"{name} head"
        )
    weights = checkpoint / _WEIGHTS
    if not weights.is_file():  # several files: the digest is that of a single one
        return
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if own.get("target_sha256") != digest:
        raise CheckpointError(
            f"drafter {name!r}: {folder} was trained for weights with SHA-256 {own.get('target_sha256')!r}, "
            f"but {weights} has {digest!r}; train it again for these, or restore the weights that it is for"
        )
