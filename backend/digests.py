"""SHA-256 digests of weights: a damaged or exchanged file is refused before anything of it is served."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from backend.errors import CheckpointError

_SAMPLES, _SAMPLE_BYTES = 16, 4096


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


def revision_of(checkpoint: Path) -> str:
    """A hash of config.json and of each weight file's name, size, header and evenly spaced samples.

    Reads 64 KiB per file, so it takes milliseconds for a checkpoint of any size; independent of the folder.
    """
    digest = hashlib.sha256((checkpoint / "config.json").read_bytes())
    for path in sorted(filter(Path.is_file, checkpoint.glob("*.safetensors"))):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header_bytes, size)))
            for i in range(_SAMPLES):
                file.seek(size * i // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
