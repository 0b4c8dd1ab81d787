"""`python -m tests`: both halves of the tests at once, the output of both, one verdict.

Each half leaves a core idle for much of its time: the engine and much of the gateway beside all others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from types import FrameType

from backend.parent_death_signal import die_with
from tests.orphans import end_with_this_process

BESIDE = [
    "tests/backend",
    *(f"tests/gateway/{each}" for each in ("admin", "evaluation", "processes")),
]
SHOWN = ["tests", *(f"--ignore={each}" for each in BESIDE)]
STOP_TIMEOUT_S = 60.0


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run them. Returns the worse exit code, and ends both on SIGINT and SIGTERM."""
    die_with(os.getppid())()  # make's end is the end of its tests
    end_with_this_process()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    pytest = [sys.executable, "-m", "pytest"]
    with tempfile.TemporaryFile("w+") as log:
        # In sessions of their own, so that Ctrl-C reaches each once, from here.
        beside = subprocess.Popen(
            [*pytest, *BESIDE], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        shown = subprocess.Popen([*pytest, *SHOWN], start_new_session=True)
        halves = {"others": shown, BESIDE[0]: beside}
        try:
            for half in halves.values():
                half.wait()
        except KeyboardInterrupt:
            for half in halves.values():
                if half.poll() is None:
                    half.send_signal(signal.SIGINT)  # it prints what it has found so far
        for half in halves.values():
            half.wait(STOP_TIMEOUT_S)
        log.seek(0)
        sys.stdout.write(f"\n{BESIDE[0]}\n")
        for line in log:
            sys.stdout.write(line)
    for name, half in halves.items():
        sys.stdout.write(f"{name}: {'passed' if half.returncode == 0 else f'FAILED ({half.returncode})'}\n")
    return max(abs(half.returncode) for half in halves.values())


if __name__ == "__main__":
    sys.exit(main())
