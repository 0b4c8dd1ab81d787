"""Pages of other sites: they change and read nothing, with keys or without, after DNS rebinding neither."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser.conftest import BOSS
from tests.e2e.browser.sign_in import signed_in
from tests.e2e.browser.watched import Watched
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server
from tests.e2e.upstream import Upstream

ELSEWHERE = "http://elsewhere.test"
FETCHES = """async ([url, bodies]) => {
  const read = [];
  for (const options of [
    {}, { mode: "no-cors" }, { credentials: "include" },
    ...bodies.flatMap(body => [
      { method: "POST", body, mode: "no-cors", headers: { "content-type": "text/plain" } },
      { method: "POST", body, mode: "no-cors" },
      { method: "POST", body, headers: { "content-type": "application/json", "x-penstock-console": "1" } },
    ]),
  ]) {
    try { read.push(await (await fetch(url, options)).text()); } catch { read.push(""); }
  }
  return read.join("");
}"""
FORM = """<form method="post" enctype="text/plain" action="{url}"><input name='{{"a":"' value='"}}'></form>
<img src="{url}"><script src="{url}"></script>"""
OWN = """async ([path, headers]) => {
  const json = { "content-type": "application/json" };
  const post = headers && { method: "POST", headers: { ...json, ...headers }, body: "{}" };
  return (await fetch(path, post ?? {})).status;
}"""


@pytest.fixture(scope="module")
def without_keys(
    start_module_server: StartServer, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    path = tmp_path_factory.mktemp("policies") / "all.yaml"
    path.write_text(f'models: {{remote: {{upstream: {{base_url: "{upstream.base_url}"}}}}}}\n')
    return start_module_server("--policies", str(path))


@pytest.fixture
def elsewhere(browser: Browser) -> Iterator[Page]:
    """A page of another site; what it is refused is written to its console, so nothing is watched."""
    pages = Watched(browser, ELSEWHERE)
    page = pages.open()
    page.route(f"{ELSEWHERE}/", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    page.goto(f"{ELSEWHERE}/")
    yield page
    pages.close()


def version(server: Server) -> list[object]:
    """The version of the policies, and how often there was a change or an attempt."""
    state = httpx.get(f"{server.root_url}/admin/policies", timeout=60).json()
    return [state[name] for name in ("version", "num_reloads", "num_failures")]


def test_another_site_reaches_nothing_without_keys(
    elsewhere: Page, without_keys: Server, upstream: Upstream, browser: Browser
) -> None:
    before, seen = version(without_keys), len(upstream.seen)
    chat = '{"model": "remote", "messages": [{"role": "user", "content": "hi"}]}'
    for path in (
        "/admin/policies",
        "/admin/policies/rollback",
        "/v1/chat/completions",
        "/v1/cache/invalidate",
    ):
        url = without_keys.root_url + path
        assert elsewhere.evaluate(FETCHES, [url, ["{}", chat]]) == ""
        elsewhere.set_content(FORM.format(url=url))
        with elsewhere.expect_navigation() as moved:
            elsewhere.evaluate("document.forms[0].submit()")
        assert moved.value.status in (403, 415), path
        elsewhere.goto(f"{ELSEWHERE}/")
    assert version(without_keys) == before and len(upstream.seen) == seen

    own = Watched(browser, without_keys.root_url)
    page = own.open("/console/")
    assert page.evaluate(OWN, ["/admin/policies", {}]) == 403
    assert page.evaluate(OWN, ["/admin/policies", {"x-penstock-console": "1"}]) == 200
    own.close()


def test_a_name_that_has_been_rebound_reads_nothing_of_admin(browser: Browser, without_keys: Server) -> None:
    """Its page is of the gateway's own address, so the browser lets it read everything."""
    rebound = Watched(browser, f"http://rebound.test:{without_keys.port}")
    page = rebound.open("/console/")
    for path in ("/admin/policies", "/admin/traffic", "/admin/live?once=1"):
        assert page.evaluate(OWN, [path, None]) == 403
        assert page.evaluate(OWN, [path, {"x-penstock-console": "1"}]) in (403, 405)
    rebound.close()


def test_a_key_is_nothing_that_another_site_could_use(
    pages: Watched, elsewhere: Page, console: Server
) -> None:
    page = signed_in(pages, BOSS)
    expect(page.get_by_label("Prompt")).to_be_visible()
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.length") == 0 and BOSS not in page.url
    assert BOSS not in page.content()
    for path in ("/v1/models", "/admin/policies"):
        assert elsewhere.evaluate(FETCHES, [console.root_url + path, ["{}"]]) == ""
    other_tab = page.context.new_page()
    other_tab.goto(f"{console.root_url}/console/")
    expect(other_tab.get_by_role("button", name="Sign in")).to_be_visible()


@pytest.mark.parametrize("directive", ["frame-ancestors", "form-action", "base-uri"])
def test_the_page_can_be_put_into_no_frame(console: Server, directive: str) -> None:
    for path in ("/console/", "/docs", "/console/app.js"):
        csp = httpx.get(console.root_url + path, timeout=60).headers["content-security-policy"]
        assert f"{directive} 'none'" in csp and "unsafe" not in csp
