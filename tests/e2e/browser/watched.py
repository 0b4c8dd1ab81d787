"""Pages of one Chromium, in contexts of their own; whatever goes wrong in one of them is kept as a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

from gateway.console.pages import HEADERS, MEDIA_TYPES, STATIC

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * 127.0.0.1",  # every name is ours, as it is for a page that rebinds its own
)
AXE = files("axe_playwright_python") / "axe.min.js"
WIDE, NARROW = (1280, 800), (360, 720)
TIMEOUT_MS = 60_000.0
GRAVE = ("serious", "critical")
WCAG_AA = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
REFUSED = "Failed to load resource: the server responded with a status of "
"""What Chromium writes about each answer that is an error, whether or not the page expects it."""

SCRIPTED = "http://localhost:9"
"""Where the console is whose gateway is a test."""


def gives_file(route: Route) -> bool:
    """Whether a page of SCRIPTED asks for one of the console's files, which it then gets."""
    name = route.request.url.removeprefix(f"{SCRIPTED}/console/") or "index.html"
    if is_file := (STATIC / name).is_file():
        kind = MEDIA_TYPES["." + name.rpartition(".")[2]].decode()
        route.fulfill(body=(STATIC / name).read_bytes(), content_type=kind, headers=HEADERS)
    return is_file


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium. Playwright's event loop occupies this thread until it ends."""
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        yield browser
        browser.close()


class Watched:
    """Opens pages of one origin, and keeps what goes wrong in them."""

    def __init__(self, browser: Browser, origin: str) -> None:
        self.origin = origin
        self.faults: list[str] = []
        """Console errors (violations of the CSP among them), exceptions, dialogs, requests to other hosts."""
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def open(self, path: str = "", size: tuple[int, int] = WIDE, *, is_dark: bool = False) -> Page:
        """A page in a context of its own, of `path` if there is one."""
        width, height = size
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if is_dark else "light",
            reduced_motion="reduce",
            locale="en-US",
        )
        context.set_default_timeout(TIMEOUT_MS)
        self._contexts.append(context)
        context.on("request", self._requested)
        context.on("console", self._printed)
        context.on("weberror", lambda raised: self.faults.append(f"exception: {raised.error}"))
        context.on(
            "dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        page = context.new_page()
        if path:
            page.goto(self.origin + path)
        return page

    def close(self) -> None:
        """Close all of the pages."""
        for context in self._contexts:
            context.close()

    def _requested(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob") and f"{url.scheme}://{url.netloc}" != self.origin:
            self.faults.append(f"request to another host: {request.url}")

    def _printed(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(REFUSED):
            self.faults.append(f"console: {message.text}")


def accessibility_faults(page: Page) -> list[str]:
    """What axe-core finds serious or critical: rule, element, and what is wrong with it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text("utf-8"))
    found: list[dict[str, Any]] = page.evaluate(
        "async of => (await axe.run(document, of)).violations", WCAG_AA
    )
    return [
        f"{rule['id']} {node['target']}: {node['failureSummary']}"
        for rule in found
        if rule["impact"] in GRAVE
        for node in rule["nodes"]
    ]


def horizontal_scroll_px(page: Page) -> int:
    """How much wider than its window the page is."""
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert isinstance(width, int)
    return width
