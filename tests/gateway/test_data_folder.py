"""What is wrong with the data folder is named: corrupt, full, not ours."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from gateway import data_folder
from gateway.data_folder import data_folder_faults
from gateway.providers.fake import FakeProvider
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import EngineModel, ModelEntry, Policies
from tests.gateway.conftest import http_client


def test_a_good_folder_and_none_have_no_faults(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "objects.sqlite") as connection:
        connection.execute("CREATE TABLE a (b)")
    connection.close()
    (tmp_path / "new.sqlite").touch()
    for folder in (tmp_path, tmp_path / "later", ""):
        assert data_folder_faults(str(folder)) == {}


def test_corrupt_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "objects.sqlite").write_bytes(b"garbage" * 1000)
    (tmp_path / "batches.sqlite").mkdir()
    found = data_folder_faults(str(tmp_path))
    assert found["objects"] == "objects.sqlite is corrupt; restore it, or move it away and restart"
    assert found["batches"].startswith("batches.sqlite cannot be read: ")


def test_a_full_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder, "MIN_FREE_BYTES", 1 << 62)
    assert "MiB are left on its file system" in data_folder_faults(str(tmp_path))["folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "not writable" in data_folder_faults(str(tmp_path))["folder"]


async def test_readiness_names_a_store_that_fails(tmp_path: Path) -> None:
    (tmp_path / "objects.sqlite").write_bytes(b"SQLite format 3\x00" + b"garbage" * 1000)
    policies = Policies(models={"m": ModelEntry(engine=EngineModel(checkpoint="/none"))}, version="v1")
    settings = Settings(data_dir=str(tmp_path), socket_paths={"m": "/none"})
    async with http_client(build_app(settings, policies, {"m": FakeProvider()})) as http:
        assert "stores" not in (await http.get("/health/ready")).json()
        assert (await http.get("/v1/responses/resp_" + "0" * 48)).status_code == 503
        assert (await http.get("/health/ready")).json()["stores"]["objects"].startswith("failed last: ")
