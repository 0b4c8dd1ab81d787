"""The tab "Policies" and its endpoints, on a gateway of two workers whose models are all upstreams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from gateway.auth import tenant_id
from tests.e2e.browser.sign_in import signed_in
from tests.e2e.browser.watched import NARROW, WIDE, Watched, accessibility_faults, horizontal_scroll_px
from tests.e2e.conftest import StartServer
from tests.e2e.server import HTTP, Server

KEY = "sk-canary-boss-of-policies"
CANARY = "canary-value-of-a-variable"
MARKUP = "<img src=x onerror=alert(1)>"
FILES = {
    "admin.yaml": f"admin: {{principals: [boss]}}\ntenants: {{boss: {{keys: [{tenant_id(KEY)}]}}}}\n",
    "models.yaml": """\
models:
  one: {upstream: {base_url: "http://127.0.0.1:9/v1", api_key_env: CANARY_KEY}}
  two: {upstream: {base_url: "http://127.0.0.1:9/v1"}}
""",
    "routes.yaml": """\
routes:
  auto:
    rules:
      - {when: request.has_tools, model: two}
    model: one
""",
}
PROPERTY = """async () => {
  const { lines } = await import("./policy_diff.js");
  let seed = 7;
  const draw = (below) => (seed = (seed * 48271) % 2147483647) % below;
  const text = () => Array.from({ length: draw(9) + 1 }, () => "abc"[draw(3)]).join("\\n");
  for (let round = 0; round < 300; round++) {
    const [a, b] = [text(), text()], all = lines(a, b);
    const without = (kind) => all.filter(([each]) => each !== kind).map((each) => each[1]).join("\\n");
    if (without("+") !== a || without("-") !== b) return [a, b];
  }
  const big = Array.from({ length: 3000 }, (_, n) => `a${n}`).join("\\n");
  return [lines("x\\ny", "x\\nz").length, lines(big, big.replaceAll("a", "b")).length];
}"""
"""What makes a diff: both texts are in it, in order, and a common line once."""
TYPING = """async () => {
  const { Editor } = await import("./policy_editor.js");
  const editor = new Editor(() => {}), changes = new MutationObserver(() => {});
  editor.show("a.yaml", "a: 🦦\\n".repeat(10_000), false);
  changes.observe(editor.gutter, { childList: true });
  return ["x", "y", "\\n"].map((typed) => {
    editor.text.setRangeText(typed, 3, 3, "end");
    editor.text.dispatchEvent(new Event("input"));
    return changes.takeRecords().length;
  });
}"""
MORE = '  three: {upstream: {base_url: "http://127.0.0.1:9/v1"}}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policies")


@pytest.fixture(scope="module")
def gateway(start_module_server: StartServer, folder: Path) -> Server:
    write(folder)
    log = folder.parent / f"{folder.name}.jsonl"
    facts = {"request.model": "auto", "request.has_tools": False, "time": "2026-11-01T00:00:00+00:00"}
    log.write_text(
        "".join(json.dumps({"facts": facts, "version": "v", "model": "one"}) + "\n" for _ in range(7))
    )
    environment = {"CANARY_KEY": CANARY, "PENSTOCK_DECISION_LOG": str(log)}
    arguments = ("--policies", str(folder), "--workers", "2")
    return start_module_server(*arguments, api_key=KEY, environment=environment)


@pytest.fixture(autouse=True)
def served(gateway: Server, folder: Path) -> Iterator[None]:
    """The same files before each test; no answer or line of the log has a key or a variable's value."""
    write(folder)
    assert post(gateway, "", {}).status_code == 200
    yield
    assert CANARY not in gateway.log and KEY not in gateway.log


@pytest.fixture
def pages(browser: Browser, gateway: Server) -> Iterator[Watched]:
    watched = Watched(browser, gateway.root_url)
    yield watched
    watched.close()
    assert watched.faults == []


def write(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, text in FILES.items():
        (folder / name).write_text(text)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def post(gateway: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = HTTP.post(
        f"{gateway.root_url}/admin/policies{path}", headers=gateway.headers, json=body, timeout=120
    )
    assert CANARY not in answer.text and KEY not in answer.text
    return answer


def files(gateway: Server) -> dict[str, Any]:
    answer = HTTP.get(f"{gateway.root_url}/admin/policies/files", headers=gateway.headers, timeout=60)
    assert CANARY not in answer.text and KEY not in answer.text
    found: dict[str, Any] = answer.json()
    return found


def base(gateway: Server) -> dict[str, str]:
    return {file["name"]: file["digest"] for file in files(gateway)["files"]}


def models(gateway: Server) -> set[str]:
    """The names that four connections get, to both of the workers."""
    asked = [
        HTTP.get(f"{gateway.base_url}/models", headers=gateway.headers, timeout=60).json() for _ in range(4)
    ]
    assert all(answer == asked[0] for answer in asked)
    return {model["id"] for model in asked[0]["data"]}


def test_what_is_applied_holds_for_the_next_request_until_it_is_rolled_back(
    gateway: Server, folder: Path
) -> None:
    change = {"models.yaml": FILES["models.yaml"] + MORE, "new.yaml": "x-note: 1\n"}
    answer = post(gateway, "/apply", {"files": change, "base": base(gateway)})
    assert answer.status_code == 200, answer.text
    assert "three" in models(gateway)
    assert texts(folder) == FILES | change
    assert "audit: boss changed the policies models.yaml, new.yaml" in gateway.log
    assert post(gateway, "/rollback", {}).status_code == 200
    assert "three" not in models(gateway) and texts(folder) == FILES | change
    assert files(gateway)["is_rolled_back"]
    assert post(gateway, "", {}).status_code == 200
    assert "three" in models(gateway) and not files(gateway)["is_rolled_back"]


def test_a_change_that_cannot_be_served_leaves_files_and_version(gateway: Server, folder: Path) -> None:
    version = files(gateway)["version"]
    wrong = {
        "unknown key 'rulse' in routes.auto; did you mean 'rules'": ("routes.yaml", "rules:", "rulse:"),
        "takes its API key from the variable UNSET_KEY": ("models.yaml", "CANARY_KEY", "UNSET_KEY"),
        "no caller could undo this": ("admin.yaml", "[boss]", "[someone]"),
    }
    for said, (name, old, new) in wrong.items():
        change = {name: FILES[name].replace(old, new)}
        answer = post(gateway, "/apply", {"files": change, "base": base(gateway)})
        assert answer.status_code == 400 and said in answer.text
        assert texts(folder) == FILES and files(gateway)["version"] == version


def test_of_two_changes_at_once_one_is_made(gateway: Server, folder: Path) -> None:
    known, routes = base(gateway), FILES["routes.yaml"]
    changes = [{"files": {"routes.yaml": f"{routes}# {n}\n" * 1}, "base": known} for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda change: post(gateway, "/apply", change).status_code, changes))
    assert sorted(answers) == [200, 409, 409, 409]
    assert texts(folder)["routes.yaml"] == changes[answers.index(200)]["files"]["routes.yaml"]  # type: ignore[index]


def editor(page: Page, name: str = "routes.yaml") -> Any:  # noqa: ANN401 - a locator
    page.get_by_role("button", name=name, exact=True).click()
    return page.get_by_label(f"Text of {name}")


def test_a_wrong_line_is_marked_the_nearest_name_taken_and_the_change_applied(
    pages: Watched, gateway: Server, folder: Path
) -> None:
    page = signed_in(pages, KEY, "policies")
    text = editor(page)
    text.fill(FILES["routes.yaml"].replace("rules:", "rulse:").replace("model: one", "model: two"))
    expect(page.get_by_text("did you mean 'rules'?")).to_be_visible()
    expect(page.locator(".gutter b")).to_have_text("● 3")
    page.get_by_role("button", name="routes.yaml:3").click()
    expect(text).to_be_focused()
    page.get_by_role("button", name="Use rules").click()
    expect(page.get_by_text("Valid: version")).to_be_visible()
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("cell", name="7 → 0")).to_be_visible()
    text.focus()
    page.keyboard.press("Control+s")
    expect(page.locator(".diff .bad")).to_have_text("-     model: one\n")
    assert texts(folder) == FILES  # not before the second step
    page.keyboard.press("Enter")
    expect(page.get_by_text(" is served, ")).to_be_visible()
    assert "model: two\n" in texts(folder)["routes.yaml"]
    page.get_by_role("button", name="Roll back…").click()
    expect(page.get_by_text("The files stay as they are")).to_be_visible()
    page.get_by_role("button", name="Roll back now").click()
    expect(page.get_by_text("This version is served by a rollback")).to_be_visible()
    assert files(gateway)["is_rolled_back"]


def test_a_draft_survives_and_a_change_below_it_is_told(pages: Watched, folder: Path) -> None:
    page = signed_in(pages, KEY, "policies")
    draft = FILES["routes.yaml"] + f"# {MARKUP}\n"
    editor(page).fill(draft)
    page.get_by_role("link", name="Playground").click()
    page.get_by_role("link", name="Policies").click()
    expect(page.get_by_label("Text of routes.yaml")).to_have_value(draft)
    page.reload()
    expect(page.get_by_label("Text of routes.yaml")).to_have_value(draft)
    (folder / "routes.yaml").write_text(FILES["routes.yaml"] + "# of another\n")
    page.get_by_role("button", name="Read again").click()
    expect(page.get_by_text("routes.yaml has changed on disk")).to_be_visible()
    page.get_by_role("button", name="Apply…").click()
    page.get_by_role("button", name="Apply now").click()
    expect(page.get_by_text("has changed since it was read")).to_be_visible()
    page.get_by_role("button", name="Take the file").click()
    expect(page.get_by_label("Text of routes.yaml")).to_have_value(FILES["routes.yaml"] + "# of another\n")


def test_tab_leaves_the_editor_and_line_ends_stay(pages: Watched, folder: Path) -> None:
    (folder / "routes.yaml").write_bytes(
        b"\xef\xbb\xbf" + FILES["routes.yaml"].replace("\n", "\r\n").encode()
    )
    page = signed_in(pages, KEY, "policies")
    text = editor(page)
    text.press("Control+End")
    page.keyboard.type("# ü 🦦")
    expect(page.get_by_text("Valid: version")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Apply…")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Apply now").click()
    expect(page.get_by_text("is served")).to_be_visible()
    changed = (FILES["routes.yaml"] + "# ü 🦦").replace("\n", "\r\n").encode()
    assert (folder / "routes.yaml").read_bytes() == b"\xef\xbb\xbf" + changed


@pytest.mark.parametrize(("size", "is_dark"), [(WIDE, False), (WIDE, True), (NARROW, True)])
def test_it_is_accessible_and_hostile_names_are_text(
    pages: Watched, size: tuple[int, int], is_dark: bool
) -> None:
    page = signed_in(pages, KEY, "policies", size, is_dark=is_dark)
    editor(page).fill(f"routes: {{'{MARKUP}': {{modle: one}}}}\nprobes: {{}}\n")
    expect(page.get_by_text(MARKUP).first).to_be_visible()
    page.get_by_role("button", name="Apply…").click()
    assert accessibility_faults(page) == []
    assert horizontal_scroll_px(page) == 0


def test_a_folder_that_cannot_be_written_is_read_only(pages: Watched) -> None:
    page = pages.open("/console/")

    def locked(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "locked": "the file system is read-only."})

    page.route("**/admin/policies/files", locked)
    page.get_by_label("Key", exact=True).fill(KEY)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Policies").click()
    expect(page.get_by_text("Read-only: the file system")).to_be_visible()
    expect(page.get_by_label("Text of admin.yaml")).not_to_be_editable()
    expect(page.get_by_role("button", name="Apply…")).to_be_disabled()


def test_a_diff_has_both_texts_and_no_line_twice(pages: Watched) -> None:
    page = pages.open("/console/")
    found = page.evaluate(PROPERTY)
    assert found == [3, 6000]


def test_lines_are_numbered_again_only_when_their_number_changes(pages: Watched) -> None:
    assert pages.open("/console/").evaluate(TYPING) == [0, 0, 1]
