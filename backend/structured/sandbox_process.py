"""`python -m backend.structured.sandbox_process JSON`: finds out whether grammars compile, within limits.

Frames (4-byte big-endian length, then bytes): llguidance source on stdin; the verdict on stdout, "+", the
compiled grammar's size (8 bytes, big-endian) and the source as `build` accepts it, or "-" and the reason. The
kernel kills the process at its limit of CPU time, with SIGPROF, or of memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

from backend.structured.compiled_grammar import compilable
from backend.structured.vocabulary import Vocabulary

HEAD_BYTES = 4
SIZE_BYTES = 8
ACCEPTED, REJECTED = b"+", b"-"
MAX_REASON_CHARS = 400


def main(argument: str) -> None:
    """Serve until stdin ends."""
    options = json.loads(argument)
    vocabulary = Vocabulary.from_checkpoint(
        Path(options["checkpoint"]), options["size"], options["eos_token_ids"]
    )
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + options["max_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _write(b"ready")
    while head := _read(HEAD_BYTES):
        source = _read(int.from_bytes(head)).decode()
        signal.setitimer(signal.ITIMER_PROF, options["cpu_s"])
        try:
            found, num_bytes = compilable(source, vocabulary)
            verdict = ACCEPTED + num_bytes.to_bytes(SIZE_BYTES) + found.encode()
        except Exception as error:  # noqa: BLE001 - any failure rejects the grammar
            reason = (
                str(error) if type(error) is ValueError else "it cannot be compiled"
            )  # others may quote it
            verdict = REJECTED + reason[:MAX_REASON_CHARS].encode("utf-8", "replace")
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(verdict)


def _read(size: int) -> bytes:
    """Return exactly `size` bytes, or b"" at the end of stdin."""
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            return b""
        data += part
    return data


def _write(data: bytes) -> None:
    data = len(data).to_bytes(HEAD_BYTES) + data
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main(sys.argv[1])
