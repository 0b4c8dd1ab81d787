"""Installs packages that add to Penstock into a folder for PYTHONPATH, as `pip install --target` does."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parent / "penstock_example"


def install_example(folder: Path) -> None:
    """The package beside this file."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "penstock_example", folder / "penstock_example", dirs_exist_ok=True)
    write_metadata(folder, project["name"], project["version"], project["entry-points"])


def write_metadata(folder: Path, name: str, version: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """What tells of an installed package, without its modules."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sections = (
        "\n".join([f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())])
        for group, entries in groups.items()
    )
    (info / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
