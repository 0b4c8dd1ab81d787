"""SHA-256 digests of weights: a damaged or exchanged file is refused before anything of it is served."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from backend.errors import CheckpointError


def check_digests(expected: Mapping[str, str]) -> None:
    """Raise CheckpointError unless each file, given by its path, has this SHA-256 in hexadecimal."""
    for name, digest in expected.items():
        try:
            with Path(name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(
                f"{name} has a pinned SHA-256 but cannot be read ({error.strerror}); restore the file"
            ) from None
        if found != digest:
            raise CheckpointError(
                f"{name} has SHA-256 {found}, but {digest} is expected: the file is damaged or another "
                "version; fetch it again, or correct the model's sha256 in the policy if that is meant"
            )


def check_listed(weights: Iterable[Path], expected: Mapping[str, str]) -> None:
    """Raise CheckpointError unless all weights of a folder, of which some file is pinned, are pinned too."""
    for path in weights:
        if str(path) not in expected:
            raise CheckpointError(
                f"{path} is not listed in the policy's sha256, as other files of its folder are; add it"
            )
