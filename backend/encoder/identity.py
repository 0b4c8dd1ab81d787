"""Which encoder it is: weights that read sentence vectors name the one that they were trained with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.encoder.checkpoint import BUILTIN, Reading, packaged_digests, read_checkpoint
from backend.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """An encoder as a card names it."""

    name: str  # for people
    digest: str  # of encoder_digest
    languages: tuple[str, ...] = ("en",)  # as declared, ISO 639-1

    def card(self) -> dict[str, object]:
        """What goes into a card, under the key `encoder`."""
        return {"name": self.name, "sha256": self.digest, "languages": [*self.languages]}

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:12]}…)"


def identity_of(
    checkpoint: str, reading: Reading | None = None, languages: Sequence[str] = ("en",)
) -> EncoderIdentity:
    """Raises CheckpointError."""
    name = checkpoint if checkpoint == BUILTIN else Path(checkpoint).name
    return EncoderIdentity(name, encoder_digest(checkpoint, reading), tuple(languages))


def identity_on(card: Mapping[str, Any]) -> EncoderIdentity:
    """The encoder that a card of weights names; older cards are all of the one that ships."""
    found = card.get("encoder")
    if not isinstance(found, dict):
        return identity_of(BUILTIN)
    languages = found.get("languages")
    names = tuple(map(str, languages)) if isinstance(languages, list) else ()
    return EncoderIdentity(str(found.get("name")), str(found.get("sha256")), names)


def encoder_digest(checkpoint: str, reading: Reading | None = None) -> str:
    """SHA-256 of what decides about the vectors: weights, tokenizer, pooling and prompt.

    Encoders with the same digest can stand in for each other. Raises CheckpointError.
    """
    found = read_checkpoint(checkpoint, reading)
    files = [*found.modules.weights, found.modules.transformer / "tokenizer.json"]
    known = packaged_digests() if checkpoint == BUILTIN else {}
    parts = {
        "files": {
            file.relative_to(found.folder).as_posix(): known.get(str(file)) or _file_digest(file)
            for file in files
        },
        "pooling": [*found.modules.pooling, found.modules.pools_prompt],
        "prompt": found.prompt,
        "size": found.output_size,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    try:
        status = path.stat()
        return _digest_of(path, status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be read ({error.strerror}): fetch it again.") from None


@lru_cache(maxsize=64)
def _digest_of(path: Path, size: int, mtime_ns: int, inode: int) -> str:
    """Read once while the file stays the same: weights have gigabytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
