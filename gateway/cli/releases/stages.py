"""Changes the stage of releases in the YAML, and nothing else there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import yaml

from gateway.admin.policy_check import load_checked
from gateway.cli.releases.command import entry_of
from gateway.cli.releases.evaluations import read_evaluation
from gateway.settings import SettingsError
from policies.document import Policies
from policies.errors import PolicyError
from policies.load import load_folder
from policies.releases import UNUSED, Stage


def promote(folder: Path, name: str, out: TextIO) -> int:
    """Make a canary the stable release. Raises PolicyError or SettingsError."""
    policies = load_folder(folder).policies
    release = entry_of(policies, name).release
    if release is None or release.stage != "canary":
        raise SettingsError(f"{name!r} is no canary: give it a `release` with `stage: canary` first")
    if release.evaluation is None:
        raise SettingsError(f"{name!r} has no `release.evaluation`: run `penstock eval models --json` first")
    found = read_evaluation(release.evaluation, name)
    if not found.is_complete or found.accuracy < release.min_accuracy or release.min_accuracy <= 0:
        what = "is incomplete" if not found.is_complete else f"has an accuracy of {found.accuracy:.4f}"
        raise SettingsError(
            f"{name!r} does not pass the gate: its evaluation {what}, and `release.min_accuracy` is "
            f"{release.min_accuracy:g}"
        )
    before, oldest = (_release_at(policies, release.of, stage) for stage in ("stable", "previous"))
    stages: list[tuple[str | None, Stage]] = [(oldest, "retired"), (before, "previous"), (name, "stable")]
    _change(folder, [(each, stage) for each, stage in stages if each is not None])
    out.write(f"{name} is stable ({found.told}); {before or release.of} answers no more\n")
    return 0


def rollback(folder: Path, name: str, out: TextIO) -> int:
    """Retire a release; the one that was stable before answers again. Raises as `promote`."""
    policies = load_folder(folder).policies
    release = entry_of(policies, name).release
    if release is None or release.stage in UNUSED:
        raise SettingsError(f"{name!r} is no canary and no stable release")
    stages: list[tuple[str, Stage]] = [(name, "retired")]
    before = _release_at(policies, release.of, "previous" if release.stage == "stable" else "stable")
    if release.stage == "stable" and before is not None:
        stages.append((before, "stable"))
    _change(folder, stages)
    out.write(f"{name} is retired; {before or release.of} answers\n")
    return 0


def _release_at(policies: Policies, base: str, stage: str) -> str | None:
    found = (
        name
        for name, entry in policies.models.items()
        if entry.release is not None and entry.release.of == base and entry.release.stage == stage
    )
    return next(found, None)


def _change(folder: Path, stages: Sequence[tuple[str, Stage]]) -> None:
    """Write the stages, each file at once; all as it was when the policies are not valid then."""
    places = load_folder(folder).places
    before: dict[Path, str] = {}
    after: dict[Path, str] = {}
    try:
        for name, stage in stages:
            path = Path(places["models", name, "release", "stage"].file)
            if path not in before:
                before[path] = after[path] = path.read_text("utf-8")
            after[path] = _with_value(after[path], ("models", name, "release", "stage"), stage)
        try:
            for path, text in after.items():
                _replace(path, text)
            load_checked(folder)
        except (OSError, PolicyError):
            for path, text in before.items():
                _replace(path, text)
            raise
    except OSError as error:
        raise SettingsError(f"{error.filename} cannot be changed: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    """Put a complete file in the place of another: who watches it never reads a part of the change."""
    target = path.resolve()  # the file, not a link to it
    temporary = target.with_name(f".{target.name}.tmp")  # policies are never read from hidden files
    try:
        temporary.write_text(text, "utf-8")
        shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _with_value(text: str, keys: Sequence[str], value: str) -> str:
    """The YAML text with another scalar below these keys. Raises SettingsError where it is elsewhere."""
    for document in yaml.compose_all(text, yaml.SafeLoader):
        node: yaml.Node | None = document
        for key in keys:
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            node = next((found for name, found in pairs if name.value == key), None)
        if isinstance(node, yaml.ScalarNode):
            return text[: node.start_mark.index] + value + text[node.end_mark.index :]
    raise SettingsError(f"write {'.'.join(keys)} out in the file: it comes from an anchor")
