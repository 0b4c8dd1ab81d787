"""How a test signs in, and opens a tab."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.e2e.browser.watched import WIDE, Watched


def signed_in(
    pages: Watched, key: str, tab: str = "playground", size: tuple[int, int] = WIDE, *, is_dark: bool = False
) -> Page:
    """A page of the console with this key, at this tab."""
    page = pages.open(f"/console/#{tab}", size, is_dark=is_dark)
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("nav a[aria-current=page]")).to_have_attribute("href", f"#{tab}")
    return page
