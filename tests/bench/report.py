"""The output of a benchmark: the machine, then a table; as JSON on request."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "transformers",
    "starlette",
    "uvicorn",
    "uvloop",
    "aiohttp",
    "msgspec",
)

Row = dict[str, Any]


def machine() -> dict[str, str]:
    """Hardware and versions, without which a figure has no meaning."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory_kib = int(Path("/proc/meminfo").read_text().split(maxsplit=2)[1])
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.1f}",
        "memory_gib": f"{memory_kib / 2**20:.0f}",
        "python": platform.python_version(),
        "commit": commit or "unknown",
        **_versions(),
    }


def _versions() -> dict[str, str]:
    """The versions of those packages that are here."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def show(title: str, rows: Sequence[Row], json_path: str | None) -> None:
    """Print machine and table; append both as one JSON line to `json_path`."""
    about = machine()
    print(f"\n{title}")
    print("  " + " · ".join(f"{name} {value}" for name, value in about.items()))
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns, *([cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    if json_path:
        with open(json_path, "a") as file:
            file.write(json.dumps({"benchmark": title, "machine": about, "rows": list(rows)}) + "\n")


def cell(value: object) -> str:
    """A value as tables show it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
