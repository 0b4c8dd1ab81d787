"""`python -m tests.gateway.processes.fake_process MODE`: a small process in place of an engine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main() -> int:
    mode = sys.argv[1]
    sys.stdout.write("a library says hello\n")
    if mode == "refuse":
        sys.stderr.write("this cannot work\n")
        return 2
    if mode == "crash":
        return 1
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "echo":
        phase = sys.stdin.readline().strip()
    else:
        phase = "ready"
    for line in ({"phase": "loading", "fraction": 0.5}, {"phase": phase, "fraction": 1.0}):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    if mode == "parent":  # a minimal supervisor: starts one child and is then killed
        import asyncio

        from gateway.processes.managed_process import ManagedProcess
        from tests.gateway.processes.test_managed_process import command

        def show(progress: object) -> None:
            if child.subprocess is not None:
                sys.stdout.write(json.dumps({"phase": str(child.subprocess.pid)}) + "\n")
                sys.stdout.flush()

        child = ManagedProcess(command("wait"), show)
        asyncio.run(child.run())
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    os._exit(main())
