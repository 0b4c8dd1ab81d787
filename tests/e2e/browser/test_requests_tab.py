"""The last requests and those that run, over a real engine: waterfall, findings of guardrails, cancelling."""

from __future__ import annotations

import json

import httpx
from playwright.sync_api import Page, expect

from tests.e2e.browser.conftest import BOSS
from tests.e2e.browser.sign_in import signed_in
from tests.e2e.browser.watched import Watched
from tests.e2e.upstream import Upstream

SECRET = "ada.lovelace@mill.example"
CHAT = "/v1/chat/completions"


def asked(boss: httpx.Client, text: str, model: str = "pico-small") -> str:
    """Ask without the page; the request's id."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 16}
    answer = boss.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


def opened(page: Page, request_id: str) -> None:
    """Look at one request of the list."""
    page.get_by_label("Filter by id").fill(request_id)
    page.get_by_role("button", name=request_id[:20]).click()
    expect(page.get_by_role("heading", name=f"Request {request_id}")).to_be_focused()


def test_the_waterfall_goes_down_to_the_engines_step(pages: Watched, boss: httpx.Client) -> None:
    request_id = asked(boss, "What is 28 + 14?")
    page = signed_in(pages, BOSS, "requests")
    opened(page, request_id)
    record = page.locator("article.panel")
    expect(record).to_contain_text("pico-small")
    waterfall = record.get_by_role("group", name="Waterfall of")
    for part in ("queued", "prefill", "decode"):
        expect(waterfall.get_by_role("img", name=f"{part}: ").first).to_be_visible()
    waterfall.get_by_role("img", name="decode: ").first.focus()
    expect(record.locator("p[aria-live]")).to_contain_text("decode: ")
    expect(record).to_contain_text("tokens/s")
    expect(record).not_to_contain_text("28 + 14")  # these policies record no texts


def test_a_guardrails_finding_is_shown_and_never_what_it_has_found(
    pages: Watched, boss: httpx.Client
) -> None:
    request_id = asked(boss, f"Write to {SECRET} about the mill.", "guarded")
    page = signed_in(pages, BOSS, "requests")
    opened(page, request_id)
    findings = page.get_by_role("table", name="Guardrails")
    expect(findings.get_by_role("cell", name="personal_data")).to_be_visible()
    expect(findings.get_by_role("cell", name="email", exact=False)).to_be_visible()
    assert SECRET not in page.content()


def test_a_running_request_is_cancelled(pages: Watched, boss: httpx.Client, upstream: Upstream) -> None:
    upstream.left.clear()
    body = {"model": "remote", "messages": [{"role": "user", "content": "drip"}], "stream": True}
    page = signed_in(pages, BOSS, "requests")
    with boss.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        request_id = answer.headers["x-request-id"]
        button = page.get_by_role("button", name=f"Cancel {request_id}")
        button.click()
        expect(button).to_have_count(0)
        last = [line for line in lines if line][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert "cancelled" in error["message"].lower(), error
    assert upstream.left.wait(60)
    page.get_by_label("Filter by id").fill(request_id)
    expect(page.get_by_role("table", name="The last requests: 1 of")).to_be_visible()
