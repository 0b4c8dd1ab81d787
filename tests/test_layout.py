"""The house as it should stay: root entries, tests for every package, no grab-bag modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ROOT_ENTRIES = {
    ".ci",
    ".dockerignore",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "backend",
    "constraints.txt",
    "deploy",
    "gateway",
    "policies",
    "pyproject.toml",
    "tests",
}
PACKAGES = ("gateway", "policies", "backend")
GRAB_BAGS = {"utils", "util", "common", "helpers", "helper", "misc", "core"}
# Folders that hold records and interfaces only; their users test them.
TESTED_BY_THEIR_USERS = {Path("backend")}
MAX_WEIGHTS_BYTES = 48 * 2**20


def tracked_files() -> list[Path]:
    """Paths that git knows, or would know after `git add`, relative to the root."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(line) for line in lines if (ROOT / line).exists()]


def modules() -> list[Path]:
    return [
        p for p in tracked_files() if p.parts[0] in PACKAGES and p.suffix == ".py" and p.name != "__init__.py"
    ]


def test_root_entries_are_on_the_list() -> None:
    assert {path.parts[0] for path in tracked_files()} - ROOT_ENTRIES == set()


def test_no_grab_bag_modules() -> None:
    names = {
        part.removesuffix(".py") for path in tracked_files() if path.suffix == ".py" for part in path.parts
    }
    assert names & GRAB_BAGS == set()


def test_every_package_has_tests() -> None:
    packages = {module.parent for module in modules()}
    untested = {package for package in packages if not list((ROOT / "tests" / package).glob("test_*.py"))}
    assert untested - TESTED_BY_THEIR_USERS == set()


def test_weights_stay_small() -> None:
    sizes = [(ROOT / path).stat().st_size for path in tracked_files() if path.suffix == ".safetensors"]
    assert sum(sizes) <= MAX_WEIGHTS_BYTES
