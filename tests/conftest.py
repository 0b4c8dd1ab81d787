"""What holds here and in every process that a test starts; no deadlines; no process is left over.

Hypothesis would fail an example for taking 200 ms, which says more about the machine than about the code.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.orphans import end_with_this_process

# Tiny models do not gain from threads, and lose much when other processes use the cores.
os.environ["OMP_NUM_THREADS"] = "1"
# Containers turn this off; then each of hundreds of processes compiles the whole source.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Each HTTP client reads all certificates that it trusts: 60 ms of CPU time with the world's, 2 ms with one
# certificate without a key. Tests that use TLS name their own.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("certificate.pem"))

settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")
end_with_this_process()

FOLDER_DEPTH = 3
FOLDERS_SHOWN = 20
durations_s: Counter[Path] = Counter()


def pytest_collection_finish() -> None:
    """Take what was imported out of later collections, which then take milliseconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _without_garbage() -> Iterator[None]:
    """Free cycles after each module: Python does not see the 130 MB behind an encoder's small object."""
    yield
    gc.collect()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    durations_s[Path(*Path(report.nodeid.split("::")[0]).parent.parts[:FOLDER_DEPTH])] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds per folder, the most expensive first."""
    if len(durations_s) > 1:
        terminalreporter.section("seconds per folder")
        for folder, duration_s in durations_s.most_common(FOLDERS_SHOWN):
            terminalreporter.write_line(f"{duration_s:7.1f}  {folder}")
