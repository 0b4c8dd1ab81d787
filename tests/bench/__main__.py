"""`python -m tests.bench NAME [options]`: one benchmark per module, each prints the machine and a table."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
BENCHMARKS = (
    "adapters", "background", "cache", "cache_index", "cache_semantic", "chaos", "engine", "faults",
    "gateway", "gpu", "grammars", "guardrails", "host", "parallel", "policy", "prefix", "replicas", "soak",
    "speculative", "stall", "step", "translation", "tune",
)  # fmt: skip


def main() -> None:
    """Imports only the benchmark that is asked for: each needs other packages."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="append results to FILE, one JSON line per table")
    default = Path(tempfile.gettempdir(), "penstock-bench")
    parser.add_argument("--dir", default=str(default), help=f"where checkpoints are kept (default {default})")
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name in BENCHMARKS:
        command = commands.add_parser(name, help=summary(name))
        if name in sys.argv[1:]:
            module = importlib.import_module(f"tests.bench.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    commands.add_parser("scheduler", help="Python time per step of the scheduler alone").set_defaults(
        run=_scheduler
    )
    commands.add_parser("checkpoints", help="create the random checkpoints").set_defaults(run=_checkpoints)
    arguments = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # runs the `finally` blocks that end child processes
    arguments.run(arguments)


def summary(name: str) -> str:
    """The first line of a benchmark's docstring."""
    path = FOLDER / f"{name}.py"
    with (path if path.exists() else FOLDER / name / "__init__.py").open(encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def _scheduler(arguments: argparse.Namespace) -> None:
    from tests.bench import report, scheduler

    report.show("scheduler · Python per step, no forward pass", [scheduler.run()], arguments.json)


def _checkpoints(arguments: argparse.Namespace) -> None:
    from tests.bench.checkpoints import SHAPES, ensure_checkpoint

    for name in SHAPES:
        print(ensure_checkpoint(name, Path(arguments.dir)))


if __name__ == "__main__":
    main()
