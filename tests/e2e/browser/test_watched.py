"""The bed of the browser's tests finds what it looks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.e2e.browser.watched import NARROW, Watched, accessibility_faults, horizontal_scroll_px

ORIGIN = "http://page.test"
CSP = "default-src 'none'; script-src 'self'; img-src http:"


@pytest.fixture
def pages(browser: Browser) -> Iterator[Watched]:
    """Pages that the test itself serves."""
    pages = Watched(browser, ORIGIN)
    yield pages
    pages.close()


def show(pages: Watched, body: str, script: str = "") -> Watched:
    """Open a page with this body and script, under a strict CSP."""
    page = pages.open()
    html = f'<!doctype html><html lang="en"><title>t</title>{body}<script src="/s.js"></script></html>'
    page.route(f"{ORIGIN}/s.js", lambda route: route.fulfill(body=script, content_type="text/javascript"))
    page.route(
        f"{ORIGIN}/",
        lambda route: route.fulfill(
            body=html, content_type="text/html", headers={"content-security-policy": CSP}
        ),
    )
    page.goto(f"{ORIGIN}/")
    return pages


@pytest.mark.parametrize(
    ("body", "script", "fault"),
    [
        ("", "console.error('broken')", "console: broken"),
        ("", "missing.call()", "exception: missing is not defined"),
        ("<script>alert(1)</script>", "", "Content Security Policy"),
        ('<img src=x onerror="alert(1)">', "", "Content Security Policy"),
        (
            '<img src="http://elsewhere.test/pixel.png">',
            "",
            "request to another host: http://elsewhere.test/pixel.png",
        ),
        ("", "alert('hello')", "dialog: hello"),
        ("<p>nothing wrong</p>", "console.log('fine')", ""),
    ],
)
def test_a_fault_in_a_page_is_kept(pages: Watched, body: str, script: str, fault: str) -> None:
    found = show(pages, body, script).faults
    assert bool(found) == bool(fault) and fault in "\n".join(found)


def test_axe_finds_a_field_without_a_label_and_pale_text(pages: Watched) -> None:
    page = pages.open()
    page.set_content('<main lang="en"><input><p style="color:#ccc;background:#fff">pale</main>')
    found = "\n".join(accessibility_faults(page))
    assert "label" in found and "color-contrast" in found


def test_a_page_that_is_too_wide_is_seen(pages: Watched) -> None:
    page = pages.open(size=NARROW)
    page.set_content('<body style="margin:0"><div style="width:460px;height:9px">')
    assert horizontal_scroll_px(page) == 100
