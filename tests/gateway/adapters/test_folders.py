"""Which folders adapters may come from: builtin ones, and real folders below the allowed ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from gateway import checkpoints
from gateway.adapters.folders import check_may_load, loadable_folder
from gateway.auth import ANONYMOUS, Principal
from gateway.checkpoints import adapter_folder
from gateway.errors import Forbidden, InvalidRequest
from policies.document import AdapterLoading

FILES = ("adapter_config.json", "adapter_model.safetensors")


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_bytes(b"")
    return folder


@pytest.fixture
def loading(tmp_path: Path) -> AdapterLoading:
    make(tmp_path / "allowed" / "deep" / "good")
    make(tmp_path / "secret")
    return AdapterLoading(principals=["default"], folders=[str(tmp_path / "allowed")])


def test_a_folder_below_an_allowed_one(tmp_path: Path, loading: AdapterLoading) -> None:
    folder = tmp_path / "allowed" / "deep" / "good"
    assert loadable_folder(str(folder), loading) == folder
    (tmp_path / "allowed" / "link").symlink_to(folder)
    assert loadable_folder(str(tmp_path / "allowed" / "link"), loading) == folder


@pytest.mark.parametrize(
    "path", ["secret", "allowed/../secret", "allowed/link", "allowed/file-link", "allowed/none", "allowed"]
)
def test_everything_else_is_refused_in_the_same_words(
    path: str, tmp_path: Path, loading: AdapterLoading
) -> None:
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "allowed" / "file-link").mkdir()
    for name in FILES:
        (tmp_path / "allowed" / "file-link" / name).symlink_to(tmp_path / "secret" / name)
    given = f"{tmp_path}/{path}"
    with pytest.raises(InvalidRequest, match="is no adapter that may be loaded") as refused:
        loadable_folder(given, loading)
    assert refused.value.param == "lora_path" and refused.value.code == "adapter_not_found"


@pytest.mark.parametrize("path", ["deep/good", "\0", "builtin:nonsense", "builtin:../pico-small", ""])
def test_odd_paths(path: str, loading: AdapterLoading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(loading.folders[0])
    with pytest.raises(InvalidRequest):
        loadable_folder(path, loading)


def test_builtin_adapters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loading: AdapterLoading) -> None:
    monkeypatch.setattr(checkpoints, "BUILTIN_ADAPTERS", tmp_path / "builtin")
    folder = make(tmp_path / "builtin" / "german")
    assert adapter_folder("builtin:german") == loadable_folder("builtin:german", loading) == folder
    with pytest.raises(CheckpointError, match="no adapter 'builtin:x' ships with Penstock; known: german"):
        adapter_folder("builtin:x")
    assert adapter_folder(str(tmp_path / "later")) == tmp_path / "later"


def test_only_named_principals_may_load(loading: AdapterLoading) -> None:
    assert check_may_load(ANONYMOUS, loading) is loading
    stranger = Principal(tenant="key-00000000", key_id="00000000")
    for principal, given in ((stranger, loading), (ANONYMOUS, None)):
        with pytest.raises(Forbidden, match=principal.tenant):
            check_may_load(principal, given)
