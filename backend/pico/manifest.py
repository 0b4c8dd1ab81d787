"""Size and SHA-256 of every file of the family: `python -m backend.pico.manifest` writes MANIFEST.json."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import TypedDict

from backend.classifiers.training_files import run
from backend.pico.recipe import WEIGHTS

MANIFEST = "MANIFEST.json"
MAX_TOTAL_BYTES = 24_000_000


class Entry(TypedDict):
    """One file."""

    bytes: int
    sha256: str


class Manifest(TypedDict):
    """All files of the folder but the manifest, by relative path."""

    license: str
    total_bytes: int
    files: dict[str, Entry]


def describe(folder: Path) -> Manifest:
    """Return the manifest of the folder's content."""
    files: dict[str, Entry] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != MANIFEST:
            content = path.read_bytes()
            files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    total = sum(entry["bytes"] for entry in files.values())
    return {"license": "Apache-2.0", "total_bytes": total, "files": files}


def differences(folder: Path) -> list[str]:
    """Return the differences between the stored manifest and the folder, one sentence each."""
    stored: Manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    found = describe(folder)
    sentences = []
    for name in sorted(stored["files"].keys() | found["files"].keys()):
        listed, there = stored["files"].get(name), found["files"].get(name)
        if there is None:
            sentences.append(f"{name} is listed but missing")
        elif listed is None:
            sentences.append(f"{name} is not listed")
        elif listed != there:
            sentences.append(f"{name} has SHA-256 {there['sha256']}, not {listed['sha256']}")
    return sentences


def main() -> int:
    """Write the manifest, or compare it with `--check`. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the family's members")
    parser.add_argument("--check", action="store_true", help="compare the files with the stored manifest")
    options = parser.parse_args()
    if options.check:
        found = differences(options.weights)
        sys.stdout.write("".join(f"{sentence}\n" for sentence in found))
        return 1 if found else 0
    manifest = describe(options.weights)
    text = json.dumps(manifest, indent=1) + "\n"
    (options.weights / MANIFEST).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(manifest['files'])} files, {manifest['total_bytes']} bytes\n")
    return 0


if __name__ == "__main__":
    run(main)
