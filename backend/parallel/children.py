"""The ranks that rank 0 starts on its own machine, and the watch over them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

from backend.parent_death_signal import die_with

logger = logging.getLogger(__name__)


class Children:
    """Processes that end with this one, which ends when one of them dies or is stopped."""

    command = (sys.executable, "-m", "backend.parallel.worker")

    def __init__(self, size: int, port: int) -> None:
        """Ranks 1 to `size` - 1, which meet at `port` of the loopback interface."""
        self._is_closing = False
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._processes = [self._start(rank, size, port) for rank in range(1, size)]
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._watch, args=(rank, process.pid), daemon=True).start()

    @property
    def pids(self) -> list[int]:
        """Their process ids, by rank."""
        return [process.pid for process in self._processes]

    def close(self, wait_s: float) -> None:
        """Wait until they have ended, as they were told to, and kill those that have not."""
        self._is_closing = True
        for process in self._processes:
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, rank: int, size: int, port: int) -> subprocess.Popen[bytes]:
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # this process's own tells its progress
            env=os.environ | {name: str(value) for name, value in variables.items()},
            start_new_session=True,  # a terminal's signals are for rank 0
            preexec_fn=die_with(os.getpid()),
        )

    def _watch(self, rank: int, pid: int) -> None:
        """End this process with the child: between steps nothing else tells."""
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        if self._is_closing:
            return
        status = "?" if found is None else found.si_status
        logger.critical("rank %s ended or was stopped (status %s); the engine ends", rank, status)
        os._exit(1)
