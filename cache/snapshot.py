"""The entries of a memory store in a file, so that a restart keeps them.

Written to a temporary file first, so that a crash leaves the old one. A file that is broken, or of another
version of this code, is ignored.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import msgspec
import numpy as np
from numpy import float16

from cache.entry import Entry
from cache.evidence import Saved
from cache.memory_store import MemoryStore

LOG = logging.getLogger("penstock.cache")

HEAD = b"penstock cache 4\n"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(
    tuple[list[tuple[Entry, bytes]], dict[str, Saved]]
)  # entries with their vectors, float16, b"" without one; evidence


def write(path: Path, memory: MemoryStore) -> None:
    """Write all entries, and what is known of their errors. Failures are logged: the cache goes on."""
    body = _ENCODER.encode((list(memory.rows()), memory.evidence.saved()))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(HEAD + hashlib.sha256(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        LOG.warning("the cache's snapshot %s cannot be written (%s)", path, error.strerror)
        temporary.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Remove the file: something that is in it was forgotten. Failures are logged."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        LOG.warning("the cache's snapshot %s cannot be removed (%s)", path, error.strerror)


def load(path: Path, memory: MemoryStore, now_s: float) -> int:
    """Add the entries of a file that have not expired; their number. A file that is no snapshot is logged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        LOG.warning("the cache's snapshot %s cannot be read (%s)", path, error.strerror)
        return 0
    digest, body = content[len(HEAD) : len(HEAD) + 32], content[len(HEAD) + 32 :]
    if not content.startswith(HEAD) or hashlib.sha256(body).digest() != digest:
        LOG.warning("the cache's snapshot %s is broken or of another version: starting without it", path)
        return 0
    rows, evidence = _DECODER.decode(body)
    memory.evidence.restore(evidence)
    return sum(
        memory.add(entry, np.frombuffer(vector, float16) if vector else None)
        for entry, vector in rows
        if entry.expires_s > now_s
    )
