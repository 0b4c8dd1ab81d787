"""The tab of requests against scripted records: waterfall, filter and cancel, by keyboard, at 360 px."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.browser.watched import (
    NARROW,
    SCRIPTED,
    Watched,
    accessibility_faults,
    gives_file,
    horizontal_scroll_px,
)

HOSTILE = "<img src=x onerror=alert(1)>/\"'&lt;"
BARS = [
    (0, "http", 0, 1000, "chat, 200"),
    (1, "authorize", 0, 0.01, ""),
    (1, "call m", 10, 990, ""),
    (2, "queued", 12, 8, ""),
    *((2, "prefill", 20 + n, 1, f"64 tokens from {64 * n}") for n in range(80)),
    (2, "decode", 200, 800, f"9 tokens in 4 steps, 5 of 8 drafted tokens of {HOSTILE} accepted"),
]


def row_of(request_id: str, status: int = 200, **more: object) -> dict[str, Any]:
    return {
        "id": request_id, "ended_s": 1.8e9, "duration_ms": 1000.0, "first_token_ms": 200.0, "tenant": HOSTILE,
        "key_id": "", "endpoint": "chat", "asked": "auto", "model": "m", "route": "auto", "status": status,
        "error": "", "cache": "miss", "findings": 1, "input_tokens": 5, "output_tokens": 9, "cost_usd": 0.25,
        "worker": 0, "monotonic_s": 9.0,
    } | more  # fmt: skip


def record_of(row: dict[str, Any]) -> dict[str, Any]:
    names = ("depth", "name", "start_ms", "ms", "text")
    quote = {"replica": 0, "seconds": 0.1, "queue_tokens": 7}
    return row | {
        "reason": HOSTILE, "failed_models": ["old"], "calls": 2, "cache_entry": "ab" * 32,
        "cache_guard": "numbers", "cache_similarity": "0.91", "cache_probability": "0.997",
        "finish_reasons": ["stop"], "prompt": "",
        "rule": "rule 1", "rule_name": "short", "gain": 0.125, "strategy": "quality_per_cost",
        "values": {"m": 0.5}, "placements": [{"chosen": 0, "reason": "soonest", "quotes": [quote]}],
        "candidates": [
            {"model": "m", "quality": 0.7, "cost": 1.0, "latency_s": 0.2, "cached_share": 0.5, "usd": 0.01}
        ],
        "tried": [{"rule": "rule 1", "condition": "a > 1", "matched": None, "values": {"a": HOSTILE}}],
        "findings": [{"check": "pattern", "kind": HOSTILE, "outcome": "flagged"}],
        "tokens": {"prompt_tokens": 5, "cached_tokens": 4, "completion_tokens": 9, "reasoning_tokens": 3},
        "tokens_per_s": 12.5, "drafts": {"ngram": {"drafts": 2, "proposed": 8, "accepted": 5}},
        "timeline": [dict(zip(names, bar, strict=True)) for bar in BARS],
        "missing_workers": [],
    }  # fmt: skip


class Gateway:
    """Answers the page; `running` is what it says is in flight."""

    def __init__(self) -> None:
        late = row_of(f"second{'0' * 90}", 503, error="Unavailable", duration_ms=2e3)
        self.rows = [row_of("first/id"), late]
        self.running = [row_of("running/id", phase="answering", output_tokens=3, elapsed_ms=10, since_s=1.0)]
        self.asked: list[tuple[str, str]] = []
        self.missing = [1]
        self.refusal = ""

    def handle(self, route: Route) -> None:
        request, path = route.request, route.request.url.removeprefix(SCRIPTED)
        if gives_file(route):
            return
        self.asked.append((request.method, path))
        if self.refusal:
            route.fulfill(status=401, json={"error": {"message": self.refusal}})
        elif path.startswith("/admin/requests/in-flight"):
            route.fulfill(json={"data": self.running, "missing_workers": []})
        elif path == "/admin/requests":
            route.fulfill(json={"data": self.rows, "missing_workers": self.missing})
        elif request.method == "POST":
            self.running = []
            route.fulfill(json={"cancelled": 1})
        else:
            wanted = unquote(path.removeprefix("/admin/requests/").partition("?")[0])
            found = [row for row in self.rows if row["id"] == wanted]
            route.fulfill(status=200 if found else 404, json=record_of(found[0]) if found else {})


@pytest.fixture(scope="module")
def opened(scripted: Watched) -> Page:
    return scripted.open(size=NARROW, is_dark=True)


@pytest.fixture
def gateway(opened: Page) -> Iterator[Gateway]:
    gateway = Gateway()
    opened.route("**/*", gateway.handle)
    yield gateway
    opened.unroute("**/*")


@pytest.fixture
def page(opened: Page, scripted: Watched, gateway: Gateway) -> Iterator[Page]:
    """The tab, in which nothing may go wrong."""
    opened.goto(f"{SCRIPTED}/console/#requests")
    opened.get_by_role("button", name="first/id").wait_for()
    yield opened
    opened.goto("about:blank")  # the tab asks again and again, and must not once nothing answers it
    faults = [*scripted.faults]
    scripted.faults.clear()
    assert faults == []


def test_a_record_has_all_reasons_and_a_waterfall_for_the_keyboard(page: Page) -> None:
    page.get_by_role("button", name="first/id").press("Enter")
    record = page.get_by_role("article")
    for words in (
        "m, asked for auto", "rule 1 (short)", "miss, stopped by numbers, P 0.997, similarity 0.91", "0.125",
        "5 in, 4 of them cached, 9 out, 3 of them reasoning", "$0.25", "200 ms", "12.5 tokens/s",
        "ngram: 5 of 8 accepted in 2 drafts", "cannot be evaluated", "soonest", "quality_per_cost", HOSTILE,
    ):  # fmt: skip
        expect(record).to_contain_text(words)
    bars = record.locator("svg g")
    assert bars.count() == 60, "bars beyond these are in the table"
    bars.nth(2).focus()
    expect(record.locator("p[aria-live]")).to_have_text("call m: 990 ms, from 10 ms on")
    page.keyboard.press("Tab")
    expect(record.locator("p[aria-live]")).to_contain_text("queued: 8.00 ms")
    record.get_by_text(f"The same {len(BARS)} parts as a table").click()
    expect(record.get_by_role("region", name="Parts of the request's time")).to_contain_text(
        "9 tokens in 4 steps"
    )
    widths = [bars.nth(at).locator("rect").bounding_box() for at in (0, 1, 2)]
    full, tiny, call = (0.0 if box is None else box["width"] for box in widths)
    assert tiny >= 2 and full > 250 and call == pytest.approx(0.99 * full, abs=2)
    assert accessibility_faults(page) == [] and horizontal_scroll_px(page) == 0


def test_the_list_is_filtered_by_text_and_status(page: Page) -> None:
    expect(page.get_by_text("Workers 1 did not answer")).to_be_visible()
    page.get_by_label("Filter by id").fill("UNAVAIL")
    expect(page.get_by_text("The last requests: 1 of 2")).to_be_visible()
    page.get_by_label("Filter by id").fill("")
    page.get_by_label("Status").select_option("2")
    expect(page.get_by_role("button", name="second")).to_have_count(0)


def test_the_slowest_come_first_where_that_is_asked(page: Page) -> None:
    first = page.get_by_role("table", name="The last requests").locator("tbody tr").first
    expect(first).to_contain_text("first/id")
    page.get_by_label("Order").select_option("slowest")
    expect(first).to_contain_text("second")


def test_a_request_is_cancelled_by_its_id_and_tenant(page: Page, gateway: Gateway) -> None:
    page.get_by_role("button", name="Cancel running/id").click()
    expect(page.get_by_role("region", name="In flight: 0")).to_be_focused()
    (asked,) = [path for method, path in gateway.asked if method == "POST"]
    path, _, query = asked.partition("?")
    assert path == "/admin/requests/running%2Fid/cancel"
    assert unquote(query.replace("+", " ")) == f"tenant={HOSTILE}"


def test_a_record_is_closed_where_it_was_opened_and_an_error_stays(page: Page, gateway: Gateway) -> None:
    button = page.get_by_role("button", name="second")
    button.press("Enter")
    expect(page.get_by_role("heading", name="Request second")).to_be_focused()
    assert page.get_by_role("article").bounding_box()["y"] < button.bounding_box()["y"]  # type: ignore[index]
    page.get_by_role("button", name="Close").press("Enter")
    expect(button).to_be_focused()
    expect(page.get_by_role("article")).to_have_count(0)
    kept, gateway.rows = gateway.rows, []
    button.click()
    failure = page.get_by_role("alert").filter(has_text="answered 404")
    expect(failure).to_be_visible()
    with page.expect_response("**/admin/requests"):
        pass
    expect(failure).to_be_visible()
    page.get_by_label("Filter by id").focus()
    expect(page.get_by_text("No request has ended yet.")).to_be_visible()
    gateway.rows = kept


def test_a_revoked_key_is_asked_for_again(page: Page, gateway: Gateway) -> None:
    page.evaluate("sessionStorage.setItem('penstock-key', 'sk-old')")
    gateway.refusal = f"Incorrect API key {HOSTILE}"
    expect(page.get_by_role("alert")).to_contain_text(gateway.refusal)
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    gateway.asked.clear()
    page.evaluate("location.hash = 'live'")
    expect(page.get_by_role("alert")).to_contain_text(gateway.refusal)
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    assert len(gateway.asked) == 1
    page.evaluate("sessionStorage.clear()")


def test_nothing_is_asked_once_another_tab_is_open(page: Page, gateway: Gateway) -> None:
    page.clock.install()
    page.reload()
    page.get_by_role("button", name="first/id").wait_for()
    before = len(gateway.asked)
    page.clock.run_for(10_000)
    page.wait_for_load_state("networkidle")
    assert len(gateway.asked) > before, "the tab asks while it is open"
    page.evaluate("location.hash = 'playground'")
    expect(page.locator("nav a[aria-current=page]")).to_have_text("Playground")
    gateway.asked.clear()
    page.clock.run_for(10_000)
    page.wait_for_load_state("networkidle")
    assert [path for _, path in gateway.asked if path.startswith("/admin/requests")] == []


def test_long_names_and_the_tabs_fit_into_360_px(page: Page, gateway: Gateway) -> None:
    gateway.rows = [row_of(f"second{'0' * 90}", tenant="t" * 300, model="m" * 300)]
    page.reload()
    page.get_by_role("button", name="second").click()
    expect(page.get_by_role("heading", name="Request second")).to_be_focused()
    assert horizontal_scroll_px(page) == 0
    widths = [box["width"] for cell in page.locator("td").all() if (box := cell.bounding_box())]
    assert max(widths[1:]) < 300, "a long name leaves room for the columns behind it"
    tops = [tab.bounding_box() for tab in page.locator("nav a").all()]
    assert len({box["y"] for box in tops if box}) < len(tops) - 1, "one below the other"


def test_a_proxys_page_is_told_from_an_answer_and_broken_drafts_are_left(page: Page) -> None:
    page.route("**/admin/**", lambda route: route.fulfill(content_type="text/html", body="<h1>Sign in</h1>"))
    page.evaluate("sessionStorage.setItem('penstock-policies', '{')")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("does a proxy ask you to sign in?")
    page.unroute("**/admin/**")
    page.evaluate("sessionStorage.clear()")
