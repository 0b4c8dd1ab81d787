"""/v1/files over HTTP: uploads, lists, content, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from openai.types import FilePurpose
from starlette.routing import Router

from gateway.batches.service import BatchService
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.batches import BatchesSection
from policies.document import Policies
from tests.gateway.conftest import MakeApp, http_client

CONTENT = b'{"a": 1}\n'
FORM = {"purpose": "batch"}


@pytest.fixture
async def http(make_app: MakeApp, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(make_app(data_dir=str(tmp_path))) as client:
        yield client


async def upload(
    http: httpx.AsyncClient, content: bytes = CONTENT, name: str = "in.jsonl", **form: str
) -> dict[str, Any]:
    response = await http.post("/v1/files", data=FORM | form, files={"file": (name, content)})
    found: dict[str, Any] = response.json()
    return found


def error_of(response: httpx.Response) -> tuple[int, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["param"], error["code"]


async def test_a_file_is_stored_until_it_is_deleted(http: httpx.AsyncClient) -> None:
    file = await upload(http)
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(CONTENT), "in.jsonl", "batch")
    assert (await http.get(f"/v1/files/{file['id']}")).json() == file
    content = await http.get(f"/v1/files/{file['id']}/content")
    assert content.content == CONTENT and content.headers["content-type"] == "application/octet-stream"
    deleted = await http.delete(f"/v1/files/{file['id']}")
    assert deleted.json() == {"id": file["id"], "object": "file", "deleted": True}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        response = await http.request(method, f"/v1/files/{file['id']}{path}")
        assert error_of(response) == (404, "id", "file_not_found")


async def test_a_large_file_comes_back_in_pieces(http: httpx.AsyncClient) -> None:
    content = bytes(range(256)) * 8192
    file = await upload(http, content)
    assert (await http.get(f"/v1/files/{file['id']}/content")).content == content


async def test_lists_come_in_pages(http: httpx.AsyncClient) -> None:
    files = [(await upload(http, name=f"{number}"))["id"] for number in range(3)]
    page = (await http.get("/v1/files", params={"limit": 2})).json()
    assert [file["id"] for file in page["data"]] == [files[2], files[1]] and page["has_more"]
    rest = (await http.get("/v1/files", params={"after": page["last_id"]})).json()
    assert [file["id"] for file in rest["data"]] == [files[0]] and not rest["has_more"]
    rising = (await http.get("/v1/files", params={"order": "asc", "purpose": "batch"})).json()
    assert [file["id"] for file in rising["data"]] == files
    assert (await http.get("/v1/files", params={"purpose": "batch_output"})).json()["data"] == []
    assert error_of(await http.get("/v1/files", params={"after": "-"}))[:2] == (400, "after")


@pytest.mark.parametrize("purpose", get_args(FilePurpose))
async def test_files_of_every_purpose_are_kept(http: httpx.AsyncClient, purpose: str) -> None:
    file = (
        await http.post("/v1/files", data={"purpose": purpose}, files={"file": ("a.txt", CONTENT)})
    ).json()
    assert file["purpose"] == purpose
    assert (await http.get(f"/v1/files/{file['id']}/content")).content == CONTENT
    (found,) = (await http.get("/v1/files", params={"purpose": purpose})).json()["data"]
    assert found == file
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    assert (await http.post("/v1/batches", json=wanted)).status_code == (200 if purpose == "batch" else 400)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "party"}, "purpose"),
        (FORM | {"mode": "x"}, "mode"),
        (FORM | {"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        (
            FORM | {"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"},
            "expires_after.seconds",
        ),
        (FORM | {"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
    ],
)
async def test_wrong_fields_are_named(http: httpx.AsyncClient, form: dict[str, str], param: str) -> None:
    response = await http.post("/v1/files", data=form, files={"file": ("a", CONTENT)})
    assert error_of(response)[:2] == (400, param)


async def test_a_form_without_a_file_is_refused(http: httpx.AsyncClient) -> None:
    for files in ({"other": ("a", b"")}, {"file": (None, "text")}):
        response = await http.post("/v1/files", data=FORM, files=files)  # type: ignore[arg-type]
        assert response.status_code == 400
    assert error_of(await http.post("/v1/files", json=FORM)) == (415, None, "unsupported_media_type")
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert (await http.post("/v1/files", content=b"--x\r\nnothing", headers=broken)).status_code == 400


async def test_an_expiry_is_honoured(http: httpx.AsyncClient) -> None:
    file = await upload(http, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})
    assert file["expires_at"] == file["created_at"] + 3600


async def test_sizes_are_limited(tmp_path: Path) -> None:
    async with http_client(bounded(tmp_path, max_file_bytes=10, max_tenant_bytes=10_000)) as http:
        assert (await upload(http, b"x" * 11))["error"]["code"] == "request_too_large"
        assert (await upload(http, b"x" * 100_000))["error"]["code"] == "request_too_large"
        assert [(await upload(http, content))["bytes"] for content in (b"x" * 10, b"")] == [10, 0]
        assert (await upload(http, b""))["error"]["code"] == "storage_limit_exceeded"  # 3 x 4096


def bounded(tmp_path: Path, **bounds: int) -> Router:
    return build_app(Settings(data_dir=str(tmp_path)), Policies(batches=BatchesSection(**bounds)))


@pytest.mark.parametrize(
    ("bounds", "size", "room"), [({"max_tenant_bytes": 100_000}, 30_000, 3), ({"max_tenant_files": 5}, 0, 5)]
)
async def test_uploads_at_the_same_time_pass_no_quota(
    tmp_path: Path, bounds: dict[str, int], size: int, room: int
) -> None:
    async with (
        http_client(bounded(tmp_path, **bounds)) as http,
        http_client(bounded(tmp_path, **bounds)) as worker,
    ):
        uploads = [upload(each, b"x" * size) for each in (http, worker) for _ in range(20)]
        answers = await asyncio.gather(*uploads)
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert {error["code"] for error in refused} == {"storage_limit_exceeded"}
        assert len(answers) - len(refused) <= room and len(refused) < len(answers)
        stored = (await http.get("/v1/files")).json()["data"]
        assert {path.name for path in (tmp_path / "files").iterdir()} == {file["id"] for file in stored}
        while "id" in await upload(http, b"x" * size):
            pass
        stored = (await http.get("/v1/files")).json()["data"]
        assert len(stored) == room
        await http.delete(f"/v1/files/{stored[0]['id']}")
        assert "id" in await upload(http, b"x" * size)


async def test_tenants_do_not_see_each_other(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(data_dir=str(tmp_path), api_keys=("one", "two"))
    other = {"authorization": "Bearer two"}
    async with http_client(app, authorization="Bearer one") as http:
        file = await upload(http)
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            path = f"/v1/files/{file['id']}{path}"
            assert (await http.request(method, path, headers=other)).status_code == 404
        assert (await http.get("/v1/files", headers=other)).json()["data"] == []
        assert (await http.post("/v1/files", headers={"authorization": ""})).status_code == 401
        batch = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        assert (await http.post("/v1/batches", json=batch, headers=other)).status_code == 404


async def test_web_pages_cannot_upload_to_a_gateway_without_keys(http: httpx.AsyncClient) -> None:
    headers = {"origin": "https://example.org"}
    response = await http.post("/v1/files", data=FORM, files={"file": ("a", b"")}, headers=headers)
    assert response.status_code == 403


async def test_without_a_folder_nothing_is_stored(make_app: MakeApp) -> None:
    async with http_client(make_app()) as http:
        assert (await upload(http))["error"]["code"] == "no_data_folder"
        assert (await http.get("/v1/files")).json()["data"] == []


async def test_files_that_have_expired_and_orphans_are_erased(tmp_path: Path) -> None:
    service = BatchService(str(tmp_path), 1000)
    service.files._now_s = lambda: 1000.0
    with (tmp_path / "source").open("w+b") as content:
        file = await service.files.add("a", "batch", "name", content, 60, BatchesSection())
    orphan = service.files.path("file-orphan.part")
    orphan.write_bytes(b"x")
    service.files._now_s = lambda: 1061.0
    await service.files.erase_old()
    assert not service.files.path(file.id).exists() and orphan.exists()
    service.files._now_s = lambda: orphan.stat().st_mtime + 86401
    await service.files.erase_old()
    assert not orphan.exists()
    await service.close()
