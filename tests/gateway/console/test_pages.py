"""The console's files over HTTP: headers, ETags, and what they may not contain."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from gateway.console.pages import HEADERS, MEDIA_TYPES, STATIC
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import Policies
from tests.gateway.conftest import http_client

FILES = sorted(path.name for path in STATIC.iterdir())
MAX_BYTES = 250_000
FORBIDDEN = {
    "HTML from text": r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser",
    "programs from text": r"\beval\(|new Function",
    "inline style": r"\sstyle=",
    "inline script": r"<script(?![^>]*\bsrc=)|\son[a-z]+=\"|javascript:",
    "another host": r"https?://(?!www\.w3\.org|localhost|127\.0\.0\.1)",
    "storage of keys beyond the tab": r"localStorage|document\.cookie",
}


@pytest.mark.parametrize("path", ["/console/", *(f"/console/{name}" for name in FILES)])
async def test_every_file_is_served_with_its_headers(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].encode() == MEDIA_TYPES[Path(path).suffix or ".html"]
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    again = await http.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_the_bare_path_leads_to_the_page_behind_a_prefix_too(http: httpx.AsyncClient) -> None:
    answer = await http.get("/console")
    assert (answer.status_code, answer.headers["location"]) == (308, "console/")


@pytest.mark.parametrize("name", ["none.js", "..%2fpages.py", "%2e%2e/pages.py", "app.js%00", "", "a" * 5000])
async def test_other_files_are_not_served(http: httpx.AsyncClient, name: str) -> None:
    answer = await http.get(f"/console/x{name}")
    assert answer.status_code == 404 and answer.json()["error"]["message"]


async def test_methods_that_change_are_refused(http: httpx.AsyncClient) -> None:
    assert (await http.post("/console/", json={})).status_code == 405


async def test_console_off() -> None:
    async with http_client(build_app(Settings(), Policies(console=False))) as client:
        for path in ("/console", "/console/", "/console/app.js", "/docs"):
            assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("what", FORBIDDEN)
def test_files_hold_nothing_that_could_run_a_text(name: str, what: str) -> None:
    assert re.findall(FORBIDDEN[what], (STATIC / name).read_text()) == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_modules_import_files_that_are_there(name: str) -> None:
    imported = re.findall(r'from "\./([^"]+)"', (STATIC / name).read_text())
    assert set(imported) <= set(FILES)


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.iterdir()) <= MAX_BYTES
