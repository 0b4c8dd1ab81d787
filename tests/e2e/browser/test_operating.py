"""What an operator does in the console: see why, forget an answer, change the policies, wrongly at first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browser.conftest import BOSS
from tests.e2e.browser.sign_in import signed_in
from tests.e2e.browser.test_console import ask, go
from tests.e2e.browser.watched import Watched

ADDRESS = "ada.lovelace@mill.example"


@pytest.fixture
def restored(policies: Path, boss: httpx.Client) -> Iterator[Path]:
    """The policies' file, which is as it was before when the test ends."""
    before = policies.read_text()
    yield policies
    policies.write_text(before)
    answer = boss.post("/admin/policies", headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text


def test_an_answer_has_its_waterfall_and_a_finding_is_a_mark_in_the_text(pages: Watched) -> None:
    page = signed_in(pages, BOSS)
    ask(page, f"Write to {ADDRESS} about the mill.", "guarded")
    answer = page.get_by_role("article").last
    mark = answer.locator("mark").first
    expect(mark).to_contain_text(ADDRESS)
    expect(mark).to_have_attribute("title", "personal_data: email")
    expect(answer.get_by_role("group", name="Waterfall of")).to_be_visible()
    for part in ("prefill", "decode"):
        expect(answer.get_by_role("img", name=f"{part}: ").first).to_be_visible()


def fact(page: Page, name: str) -> str:
    """What the last answer's record says under this name."""
    record = page.get_by_role("article").last.locator("dl.facts")
    return record.get_by_text(name, exact=True).first.locator("xpath=following-sibling::dd[1]").inner_text()


def cache_said(page: Page, prompt: str) -> str:
    """What the cache did with a prompt, as the answer's record tells it."""
    ask(page, prompt)
    record = page.get_by_role("article").last.locator("dl.facts")
    expect(record).to_contain_text("Cache")
    return fact(page, "Cache")


def test_what_is_invalidated_is_a_miss(pages: Watched) -> None:
    page = signed_in(pages, BOSS)
    prompt = "What is 19 + 23?"
    page.get_by_role("button", name="Clear").click()
    assert cache_said(page, prompt) == "miss"
    page.get_by_role("button", name="Clear").click()
    assert cache_said(page, prompt) == "exact"
    entry = fact(page, "Cache entry")
    go(page, "traffic")
    cache = page.get_by_role("region", name="Cache", exact=True)
    row = cache.get_by_role("row").filter(has_text=entry[:12])
    row.get_by_role("button", name="Invalidate").click()
    expect(cache.get_by_role("status")).to_contain_text("1 entries are forgotten")
    go(page, "playground")
    assert cache_said(page, prompt) == "miss"


def test_policies_are_changed_wrongly_and_rightly(pages: Watched, restored: Path, boss: httpx.Client) -> None:
    before = boss.get("/admin/policies").json()["version"]
    page = signed_in(pages, BOSS, "policies")
    editor = page.locator("textarea")
    expect(editor).not_to_have_value("")
    text = editor.input_value()
    editor.fill(text.replace("auto: {model: pico-small}", "auto: {model: pico-smal}"))
    problem = page.locator("ul.problems .bad")
    expect(problem).to_contain_text("did you mean 'pico-small'")
    assert boss.get("/admin/policies").json()["version"] == before and restored.read_text() == text
    page.get_by_role("button", name="Use pico-small").click()
    expect(problem).to_have_count(0)
    editor.fill(text.replace("auto: {model: pico-small}", "auto: {model: remote}"))
    expect(page.get_by_role("status").filter(has_text="Valid: version")).to_be_visible()
    page.get_by_role("button", name="Apply…").click()
    page.get_by_role("button", name="Apply now").click()
    expect(page.get_by_role("button", name="Apply now")).to_have_count(0)
    assert "auto: {model: remote}" in restored.read_text()
    assert boss.get("/admin/policies").json()["version"] != before
    go(page, "playground")
    ask(page, "hello", "auto")
    expect(page.get_by_role("article").last).to_contain_text("echo: hello")
