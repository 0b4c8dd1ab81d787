"""The entries of a memory store in a file, so that a restart keeps them.

Written to a temporary file first, so that a crash leaves the old one. A file that is broken, or of another
version of this code, is ignored.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
from numpy import float16

from cache.entry import Entry
from cache.memory_store import MemoryStore

LOG = logging.getLogger("penstock.cache")

HEAD = b"penstock cache 1\n"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[tuple[Entry, bytes]])


def write(path: Path, rows: Iterable[tuple[Entry, bytes]]) -> None:
    """Write entries with their vectors (float16, b"" without one). Failures are logged: the cache goes on."""
    body = _ENCODER.encode(list(rows))
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
    return sum(
        memory.add(entry, np.frombuffer(vector, float16) if vector else None)
        for entry, vector in _DECODER.decode(body)
        if entry.expires_s > now_s
    )
