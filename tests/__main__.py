"""`python -m tests`: both halves of the tests at once, the output of both, one verdict.

Each half leaves a core idle for much of its time: the engine and much of the gateway beside all others.
Tests of real processes share the cores with the other half, so the few that failed run once more, alone:
one that fails again fails, one that passes is named as unsteady.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from backend.parent_death_signal import die_with
from tests.orphans import end_with_this_process

BESIDE = [
    "tests/backend",
    *(f"tests/gateway/{each}" for each in ("admin", "evaluation", "processes")),
]
SHOWN = ["tests", *(f"--ignore={each}" for each in BESIDE)]
HALVES = {"others": SHOWN, BESIDE[0]: BESIDE}
CACHE = Path(".pytest_cache")
STOP_TIMEOUT_S = 60.0
MAX_REPEATED = 5
"""More failures than that are not chance."""


class Half:
    """One run of pytest, which notes in a folder of its own what failed."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path | None) -> None:
        self.name = name
        cache = CACHE / name.replace("/", "-")
        self._failed = cache / "v/cache/lastfailed"
        self._failed.unlink(missing_ok=True)
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]
        self._command = [*pytest, *arguments]
        with open(log or os.devnull, "w") as file:
            output = None if log is None else file
            # In a session of its own, so that Ctrl-C reaches each once, from here.
            self.process = subprocess.Popen(
                self._command, stdout=output, stderr=output and subprocess.STDOUT, start_new_session=True
            )

    def failed(self) -> list[str]:
        """The tests that failed."""
        return sorted(json.loads(self._failed.read_text())) if self._failed.exists() else []

    def verdict(self) -> int:
        """The exit code, once few failed tests have run alone."""
        code = abs(self.process.returncode)
        failed = self.failed()
        if code != 1 or not 1 <= len(failed) <= MAX_REPEATED:
            return code
        sys.stdout.write(f"\n{self.name}: what failed runs once more, alone\n")
        sys.stdout.flush()
        code = subprocess.run([*self._command, "--last-failed"], check=False).returncode
        for test in sorted(set(failed) - set(self.failed())):
            sys.stdout.write(f"UNSTEADY {test}: failed beside other work, passed alone\n")
        return abs(code)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run them. Returns the worse exit code, and ends both on SIGINT and SIGTERM."""
    die_with(os.getppid())()  # make's end is the end of its tests
    end_with_this_process()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        halves = [Half(name, HALVES[name], None if name == "others" else log) for name in reversed(HALVES)]
        has_stopped = False
        try:
            for half in halves:
                half.process.wait()
        except KeyboardInterrupt:
            has_stopped = True
            for half in halves:
                if half.process.poll() is None:
                    half.process.send_signal(signal.SIGINT)  # it prints what it has found so far
        for half in halves:
            half.process.wait(STOP_TIMEOUT_S)
        sys.stdout.write(f"\n{BESIDE[0]}\n")
        sys.stdout.write(log.read_text())
    codes = {half.name: abs(half.process.returncode) if has_stopped else half.verdict() for half in halves}
    for name, code in codes.items():
        sys.stdout.write(f"{name}: {'passed' if code == 0 else f'FAILED ({code})'}\n")
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())
