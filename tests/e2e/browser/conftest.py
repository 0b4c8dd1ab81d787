"""One Chromium and one gateway for this folder; a test fails when anything goes wrong in a page it opened.

The pages of `pages` belong to `console`, a gateway with an engine and two keys: one of an administrator, one
of a tenant like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from gateway.auth import tenant_id
from tests.e2e.browser.watched import SCRIPTED, Watched, chromium
from tests.e2e.conftest import starting
from tests.e2e.server import Server
from tests.e2e.upstream import Upstream

BOSS, GUEST = "sk-boss-of-the-mill", "sk-guest-of-the-mill"
POLICIES = f"""\
admin: {{principals: [boss]}}
cache: {{operators: [boss]}}
routing: {{expose: true}}
tenants:
  boss: {{keys: [{tenant_id(BOSS)}]}}
  guest: {{keys: [{tenant_id(GUEST)}]}}
models:
  pico-small:
    price: {{input_usd_per_million_tokens: 0.019, output_usd_per_million_tokens: 0.076}}
    cache: {{mode: exact}}
    engine: {{checkpoint: "builtin:pico-small", kv_cache_bytes: 33554432}}
  remote:
    price: {{input_usd_per_million_tokens: 0.15, output_usd_per_million_tokens: 0.6}}
    upstream: {{base_url: "UPSTREAM"}}
routes:
  auto: {{model: pico-small}}
  guarded: {{model: pico-small, guardrails: masked}}
guardrails:
  profiles:
    masked: {{personal_data: {{action: mask}}, expose: true}}
"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with this folder's tests: tests with an event loop of their own could not run beside it."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def policies(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Path:
    """The file with all policies of `console`."""
    path = tmp_path_factory.mktemp("policies") / "all.yaml"
    path.write_text(POLICIES.replace("UPSTREAM", upstream.base_url))
    return path


@pytest.fixture(scope="package")
def console(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, policies: Path
) -> Iterator[Server]:
    """Started for this folder; it ends with it, as others may need the memory."""
    with starting(request.session, tmp_path_factory) as start:
        arguments = ("--policies", str(policies.parent))
        yield start(*arguments, environment={"PENSTOCK_API_KEYS": f"{BOSS},{GUEST}"})


@pytest.fixture
def pages(browser: Browser, console: Server) -> Iterator[Watched]:
    """Pages of the gateway; nothing goes wrong in them."""
    pages = Watched(browser, console.root_url)
    yield pages
    pages.close()
    assert pages.faults == []


@pytest.fixture(scope="module")
def scripted(browser: Browser) -> Iterator[Watched]:
    """Pages of a console whose gateway is the test itself; nothing goes wrong in them."""
    pages = Watched(browser, SCRIPTED)
    yield pages
    pages.close()
    assert pages.faults == []


@pytest.fixture
def boss(console: Server) -> Iterator[httpx.Client]:
    """What an administrator asks without the console."""
    headers = {"authorization": f"Bearer {BOSS}", "x-penstock-console": "1"}
    with httpx.Client(base_url=console.root_url, headers=headers, timeout=60) as client:
        yield client
