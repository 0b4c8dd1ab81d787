"""`python -m tests.gateway.processes.fake_process MODE`: a small process in place of an engine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def report(phase: str, **values: object) -> None:
    sys.stdout.write(json.dumps({"phase": phase, **values}) + "\n")
    sys.stdout.flush()


def main() -> int:
    mode = sys.argv[1]
    sys.stdout.write("a library says hello\n")
    if mode == "refuse":
        sys.stderr.write("this cannot work\n")
        report("failed", error="no card 7; choose another")
        return 2
    if mode == "crash":
        return 1
    if mode == "fail":
        report("failed", error=f"no memory, process {os.getpid()}")
        return 1
    if mode == "slow":  # silent until the test lets it go on, then heartbeats
        sys.stdin.readline()
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    phase = sys.stdin.readline().strip() if mode == "echo" else "ready"
    report("loading", fraction=0.5)
    report(phase, fraction=1.0)
    if mode == "parent":
        supervise()
    while mode in ("beat", "slow"):
        report("ready")
        time.sleep(0.05)
    while True:
        time.sleep(3600)


def supervise() -> None:
    """A minimal supervisor: starts one child and is then killed."""
    import asyncio

    from gateway.processes.managed_process import ManagedProcess
    from tests.gateway.processes.test_managed_process import command

    def show(progress: object) -> None:
        if child.subprocess is not None:
            report(str(child.subprocess.pid))

    child = ManagedProcess(command("wait"), show)
    asyncio.run(child.run())


if __name__ == "__main__":
    os._exit(main())
