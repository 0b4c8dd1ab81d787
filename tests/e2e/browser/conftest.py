"""One Chromium for this folder. A test fails when anything goes wrong in a page that it has opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.e2e.browser.watched import chromium


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with this folder's tests: tests with an event loop of their own could not run beside it."""
    with chromium() as browser:
        yield browser
