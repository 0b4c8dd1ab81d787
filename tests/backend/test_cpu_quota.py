"""A container's quota of CPU time, in both versions of cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.cpu_quota import cpu_quota

V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "5000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, None),
        ({"cpu.max": "300000 50000\n", V1[0]: "100000", V1[1]: "100000"}, 6),
        ({"cpu.max": ""}, None),
        ({"cpu.max": "two 100000"}, None),
        ({V1[0]: "-1\n", V1[1]: "100000\n"}, None),
        ({V1[0]: "250000\n", V1[1]: "100000\n"}, 3),
        ({V1[0]: "250000\n"}, None),
    ],
)
def test_the_quota_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == cores
