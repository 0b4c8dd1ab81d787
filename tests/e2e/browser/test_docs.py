"""/docs: every endpoint of /openapi.json can be found, with its fields and an example that works."""

from __future__ import annotations

import re
import subprocess

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browser.conftest import GUEST
from tests.e2e.browser.watched import NARROW, WIDE, Watched, accessibility_faults, horizontal_scroll_px
from tests.e2e.server import Server


def read_with(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Read the API").click()


def test_an_endpoint_is_found_and_its_example_works(pages: Watched, console: Server) -> None:
    page = pages.open("/docs")
    read_with(page, "sk-unknown")
    expect(page.get_by_role("alert")).to_contain_text("API key")
    read_with(page, GUEST)
    count = page.get_by_role("status")
    expect(count).to_have_text(re.compile(r"^(\d+) of \1 endpoints$"))
    page.get_by_label("Search").fill("chat post")
    expect(count).to_have_text(re.compile(r"^2 of"))
    page.get_by_text("Answer a conversation.", exact=False).first.click()
    shown = page.locator("details[open]")
    expect(shown.get_by_role("cell", name="temperature")).to_be_visible()
    expect(shown.get_by_role("cell", name="number (≥ 0, ≤ 2)")).to_be_visible()
    expect(shown.get_by_role("cell", name="x-penstock-cache")).to_be_visible()
    expect(shown).to_contain_text("Answers: application/json, text/event-stream")
    command = shown.get_by_label("Example").inner_text()
    assert GUEST not in page.content() and f"curl {console.root_url}/v1/chat/completions" in command
    environment = {"PENSTOCK_API_KEY": GUEST, "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60
    )
    assert '"content":"42"' in answer.stdout, answer


@pytest.mark.parametrize(("size", "is_dark"), [(WIDE, False), (NARROW, True)])
def test_the_page_is_accessible(pages: Watched, size: tuple[int, int], is_dark: bool) -> None:
    page = pages.open("/docs", size, is_dark=is_dark)
    assert accessibility_faults(page) == []
    read_with(page, GUEST)
    page.get_by_label("Search").fill("rerank")
    page.locator("details:not([hidden]) summary").first.click()
    expect(page.get_by_role("cell", name="documents", exact=True)).to_be_visible()
    assert accessibility_faults(page) == []
    page.get_by_label("Search").fill("")
    assert horizontal_scroll_px(page) == 0
