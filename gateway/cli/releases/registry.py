"""Downloads a version of a model from MLflow's registry. Needs the extra `mlflow`."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TextIO

import yaml

from gateway.settings import SettingsError

_BLOCK = 1 << 20


def pull(version: str, folder: Path, out: TextIO) -> int:
    """Print the model's YAML, with the digests of its files. Raises SettingsError."""
    found = re.fullmatch(r"([^/@]+)[/@]([^/@]+)", version)
    if found is None:
        raise SettingsError(f"{version!r} must have the form NAME/VERSION or NAME@ALIAS")
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise SettingsError("set MLFLOW_TRACKING_URI to the URI of the MLflow server first")
    if folder.exists():
        raise SettingsError(f"{folder} exists; name a new folder")
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    try:
        download_artifacts(artifact_uri=f"models:/{version}", dst_path=str(folder))
    except (MlflowException, OSError) as error:
        raise SettingsError(f"MLflow does not give {version!r}: {error}") from None
    digests = {path.name: _digest(path) for path in sorted(folder.rglob("*.safetensors"))}
    engine = {"checkpoint": str(folder.resolve()), **({"sha256": digests} if digests else {})}
    entry = {
        f"{found[1]}-{found[2]}": {
            "engine": engine,
            "release": {"of": found[1], "stage": "canary", "version": found[2], "share": 0.1},
        }
    }
    out.write(yaml.safe_dump({"models": entry}, sort_keys=False, width=110))
    return 0


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
