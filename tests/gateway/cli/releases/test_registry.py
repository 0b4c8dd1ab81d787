"""Versions from a real MLflow registry, in files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from gateway.cli.main import main


def test_a_version_is_downloaded_with_its_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"file://{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"weights")
    client.create_registered_model("assistant")
    client.create_model_version("assistant", str(source))
    client.set_registered_model_alias("assistant", "best", 1)
    digest = hashlib.sha256(b"weights").hexdigest()
    for version, name in (("assistant/1", "assistant-1"), ("assistant@best", "assistant-best")):
        assert main(["models", "pull", version, str(tmp_path / name)]) == 0
        entry = yaml.safe_load(capsys.readouterr().out)["models"][name]
        assert entry["engine"] == {
            "checkpoint": str(tmp_path / name), "sha256": {"model.safetensors": digest},
        }  # fmt: skip
        assert entry["release"]["stage"] == "canary" and (tmp_path / name / "config.json").exists()
    assert main(["models", "pull", "assistant/9", str(tmp_path / "x")]) == 2
    assert "MLflow does not give 'assistant/9'" in capsys.readouterr().err


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for version, folder, message in (
        ("assistant", "new", "must have the form NAME/VERSION"),
        ("assistant/1", "new", "set MLFLOW_TRACKING_URI"),
    ):
        assert main(["models", "pull", version, str(tmp_path / folder)]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert main(["models", "pull", "assistant/1", str(tmp_path)]) == 2
    assert "exists; name a new folder" in capsys.readouterr().err
