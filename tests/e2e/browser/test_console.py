"""The whole page over a real gateway: every tab, in both themes and widths, by keyboard, for each caller."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.browser.conftest import BOSS, GUEST
from tests.e2e.browser.sign_in import signed_in
from tests.e2e.browser.watched import NARROW, WIDE, Watched, accessibility_faults, horizontal_scroll_px
from tests.e2e.server import Server

MAX_BYTES = 250_000
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`${alert(3)}&lt;"
QUESTION = "What is 17 + 25?"
NAMED_BY_USERS = ("outcomes", "groups", "errors_by_class")
"""Objects whose keys are names."""


def tabs(page: Page) -> list[str]:
    """The fragments of all tabs."""
    found: list[str] = page.locator("nav a[href^='#']").evaluate_all(
        "all => all.map(each => each.hash.slice(1))"
    )
    return found


def go(page: Page, tab: str) -> None:
    """Open a tab and wait until it shows what it has asked for."""
    page.locator(f"nav a[href='#{tab}']").click()
    expect(page.locator("nav a[aria-current=page]")).to_have_attribute("href", f"#{tab}")
    page.wait_for_load_state("networkidle") if tab != "live" else expect(
        page.locator("main")
    ).to_contain_text("Workers")


def ask(page: Page, text: str, model: str = "pico-small") -> None:
    """Send a prompt in the playground, and wait for the end of the answer."""
    page.get_by_label("Model, adapter or route").select_option(model)
    page.get_by_label("Prompt").fill(text)
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop").and_(page.locator(":disabled")).wait_for()


def test_sign_in_and_a_streamed_answer(pages: Watched) -> None:
    page = pages.open("/console/")
    page.get_by_label("Key", exact=True).fill("sk-unknown")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("API key")
    page.get_by_label("Key", exact=True).fill(BOSS)
    page.get_by_role("button", name="Sign in").click()
    ask(page, QUESTION)
    answer = page.get_by_role("article").last
    expect(answer).to_contain_text("42")
    expect(answer).to_contain_text("pico-small")


@pytest.mark.parametrize(("size", "is_dark"), [(WIDE, False), (NARROW, True)])
def test_every_tab_is_accessible_and_fits(pages: Watched, size: tuple[int, int], is_dark: bool) -> None:
    page = pages.open("/console/", size, is_dark=is_dark)
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    assert accessibility_faults(page) == []
    page.get_by_label("Key", exact=True).fill(BOSS)
    page.get_by_role("button", name="Sign in").click()
    ask(page, QUESTION)
    for tab in tabs(page):
        go(page, tab)
        assert accessibility_faults(page) == [], tab
        assert horizontal_scroll_px(page) == 0, tab


def test_the_page_is_small_and_soon_there(pages: Watched, console: Server) -> None:
    page, received = pages.open(), dict[str, int]()
    page.on("response", lambda answer: received.update({answer.url: len(answer.body())}))
    page.goto(f"{console.root_url}/console/", wait_until="networkidle")
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    sizes = {url: size for url, size in received.items() if "/console/" in url}
    print(
        f"\n/console/: {sum(sizes.values())} bytes in {len(sizes)} files, first paint after {paint_ms:.0f} ms"
    )
    assert len(sizes) > 5 and sum(sizes.values()) <= MAX_BYTES


def test_texts_of_users_never_run(pages: Watched, boss: httpx.Client) -> None:
    """Every string of an endpoint ends in markup. The page's watch finds what runs, or is asked for."""

    def poisoned(value: Any, name: str = "") -> Any:  # noqa: ANN401
        if isinstance(value, str):
            return value if name == "object" else value + HOSTILE
        if isinstance(value, list):
            return [poisoned(each, name) for each in value]
        if isinstance(value, dict):
            ending = HOSTILE if name in NAMED_BY_USERS else ""
            return {key + ending: poisoned(each, key) for key, each in value.items()}
        return value

    def answer(route: Route) -> None:
        path = route.request.url.partition("/admin/")[2]
        if path == "live":
            found = poisoned(boss.get("/admin/live?once=1").json())
            route.fulfill(body=f"data: {json.dumps(found)}\n\n", content_type="text/event-stream")
        else:
            given = route.fetch()
            route.fulfill(status=given.status, json=poisoned(given.json()))

    page = signed_in(pages, BOSS)
    ask(page, f"{HOSTILE} {QUESTION}")
    ask(page, HOSTILE, "guarded")
    page.route("**/admin/**", answer)
    for tab in tabs(page):
        go(page, tab)
        if tab != "playground":
            expect(page.locator("main")).to_contain_text("<img src=x onerror")
        assert page.locator("main img, main script, main iframe").count() == 0, tab
        assert pages.faults == [], tab


def focus(page: Page, selector: str) -> None:
    """Press Tab until the element has the focus; each one on the way shows that it has it."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            continue
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", (
            page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        )
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_the_keyboard_alone_is_enough(pages: Watched) -> None:
    page = pages.open("/console/")
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    page.keyboard.type(BOSS)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Prompt")).to_be_visible()
    focus(page, "a.skip")
    page.keyboard.press("Enter")
    focus(page, "textarea")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("article").last).to_contain_text("42")
    for tab in tabs(page):
        page.evaluate("document.body.tabIndex = -1, document.body.focus()")
        focus(page, f"nav a[href='#{tab}']")
        page.keyboard.press("Enter")
        expect(page.locator("nav a[aria-current=page]")).to_have_attribute("href", f"#{tab}")
        focus(page, "main button, main select, main input, main textarea, main [tabindex='0'], main a")


def test_a_tenants_key_opens_the_playground_and_nothing_else(pages: Watched, console: Server) -> None:
    page = signed_in(pages, GUEST)
    ask(page, QUESTION)
    expect(page.get_by_role("article").last).to_contain_text("42")
    for tab in set(tabs(page)) - {"playground"}:
        page.locator(f"nav a[href='#{tab}']").click()
        expect(page.get_by_role("alert").first).to_contain_text("admin.principals")
        expect(page.get_by_role("button", name="Use another key")).to_be_visible()
        expect(page.locator("main table, main textarea")).to_have_count(0)
        assert "boss" not in page.locator("main").inner_text()


def test_no_endpoint_of_admin_answers_a_tenant_or_a_stranger(console: Server) -> None:
    key = {"authorization": f"Bearer {GUEST}", "x-penstock-console": "1"}
    with httpx.Client(base_url=console.root_url, timeout=60) as client:
        paths = client.get("/openapi.json", headers=key).json()["paths"]
        admin = [(method, path) for path, of in paths.items() if path.startswith("/admin/") for method in of]
        assert len(admin) >= 5
        for method, path in admin:
            url = re.sub(r"{\w+}", "req_1", path)
            body: dict[str, Any] = {"json": {}} if method == "post" else {}
            refused = client.request(method, url, headers=key, **body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                403,
                "administration_forbidden",
            ), url
            assert client.request(method, url, **body).status_code == 401, url
