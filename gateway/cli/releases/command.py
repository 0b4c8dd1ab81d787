"""Lists and shows the models of a policy folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TextIO

import msgspec
import yaml

from gateway.cli.releases.evaluations import read_evaluation
from gateway.settings import SettingsError
from policies.document import ModelEntry, Policies
from policies.load import load_policies
from policies.names import nearest


def list_models(folder: Path, out: TextIO) -> int:
    """One line each. Raises PolicyError."""
    policies = load_policies(folder)
    rows: list[tuple[str, ...]] = [("model", "kind", "of", "stage", "version", "pinned", "accuracy")]
    rows += [_row(name, entry) for name, entry in policies.models.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        out.write("  ".join(cells).rstrip() + "\n")
    return 0


def show_model(folder: Path, name: str, out: TextIO) -> int:
    """Its section as YAML, with the evaluation. Raises PolicyError or SettingsError."""
    entry = entry_of(load_policies(folder), name)
    section = {key: value for key, value in msgspec.to_builtins(entry).items() if value not in (None, "", {})}
    out.write(yaml.safe_dump({name: section}, sort_keys=False, allow_unicode=True, width=110))
    release = entry.release
    if release is not None and release.evaluation is not None:
        found = read_evaluation(release.evaluation, name)
        out.write(
            f"# evaluated {found.began or 'at an unknown time'}: {found.told}"
            f"{'' if found.is_complete else ', incomplete'}; "
            f"the gate is {release.min_accuracy:g}\n"
        )
    return 0


def entry_of(policies: Policies, name: str) -> ModelEntry:
    """The model. Raises SettingsError with the nearest name."""
    if name not in policies.models:
        raise SettingsError(f"the policies have no model {name!r}{nearest(name, policies.models)}")
    return policies.models[name]


def _row(name: str, entry: ModelEntry) -> tuple[str, ...]:
    release, accuracy = entry.release, "–"
    if release is not None and release.evaluation is not None:
        try:
            accuracy = f"{read_evaluation(release.evaluation, name).accuracy:.4f}"
        except SettingsError:
            accuracy = "missing"
    told = ("–", "–", "–") if release is None else (release.of, release.stage, release.version or "–")
    return name, entry.kind, *told, pinned(entry), accuracy


def pinned(entry: ModelEntry) -> str:
    """The first digits of a digest over the pinned files; "builtin" where Penstock ships them."""
    engine = entry.engine
    if engine is None:
        return "–"
    if engine.checkpoint.startswith("builtin:"):
        return "builtin"
    if not engine.sha256:
        return "no"
    return hashlib.sha256(msgspec.json.encode(engine.sha256, order="deterministic")).hexdigest()[:12]
