"""Writes the console's pictures: `python -m tests.e2e.browser.screenshots`, with a gateway of its own."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, expect

from gateway.auth import tenant_id
from tests.e2e.browser.sign_in import signed_in
from tests.e2e.browser.test_console import ask, go
from tests.e2e.browser.watched import Watched, chromium
from tests.e2e.server import Server
from tests.e2e.upstream import Upstream

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "pictures"
SIZE, TALL, NARROW = (1080, 680), (1080, 1080), (360, 680)
NUM_COLOURS = 96
KEYS = {name: f"sk-{name}" for name in ("miller", "bakery", "sawmill")}
POLICIES = f"""\
admin: {{principals: [miller]}}
cache: {{operators: [miller]}}
routing: {{expose: true}}
tenants:
  miller: {{keys: [{tenant_id(KEYS["miller"])}]}}
  bakery:
    keys: [{tenant_id(KEYS["bakery"])}]
    limits: {{requests_per_minute: 600, usd_per_day: 5.0}}
  sawmill: {{keys: [{tenant_id(KEYS["sawmill"])}]}}
models:
  pico-small:
    price: {{input_usd_per_million_tokens: 0.019, output_usd_per_million_tokens: 0.076}}
    cache: {{mode: exact}}
    engine: {{checkpoint: "builtin:pico-small", kv_cache_bytes: 33554432}}
  far-away:
    price: {{input_usd_per_million_tokens: 0.15, output_usd_per_million_tokens: 0.6}}
    upstream: {{base_url: "UPSTREAM"}}
routes:
  auto:
    rules:
      - {{name: sums, when: "request.num_tokens_estimate < 200", model: pico-small}}
    model: far-away
  guarded: {{model: pico-small, guardrails: masked}}
guardrails:
  profiles:
    masked: {{personal_data: {{action: mask}}, expose: true}}
"""


LOAD = """key => setInterval(number => fetch("/v1/chat/completions", { method: "POST",
  headers: { "authorization": `Bearer ${key}`, "content-type": "application/json" },
  body: JSON.stringify({ model: "pico-small", max_tokens: 80,
    messages: [{ role: "user", content: `Sort 9, 4, 7 and ${Math.random()}.` }] }) }), 500)"""


@contextmanager
def gateway() -> Iterator[Server]:
    """A gateway with some traffic of three tenants."""
    upstream = Upstream()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "policies").mkdir()
        text = POLICIES.replace("UPSTREAM", upstream.base_url)
        (Path(folder) / "policies" / "mill.yaml").write_text(text)
        server = Server(
            Path(folder) / "log.txt",
            *("--policies", str(Path(folder) / "policies")),
            environment={"PENSTOCK_API_KEYS": ",".join(KEYS.values())},
        )
        try:
            server.wait_ready()
            for number in range(24):
                asked(
                    server,
                    list(KEYS)[number % 3],
                    f"What is {number // 2} + 25?",
                    ("auto", "far-away")[number % 5 == 0],
                )
            asked(server, "bakery", "status 429", "far-away")
            yield server
        finally:
            server.close()
            upstream.close()


def asked(server: Server, tenant: str, text: str, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 16}
    headers = {"authorization": f"Bearer {KEYS[tenant]}"}
    httpx.post(f"{server.base_url}/chat/completions", json=body, headers=headers, timeout=60)


def take(page: Page, name: str) -> None:
    """What the window shows, in few colours."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(FOLDER / f"console-{name}.png", optimize=True)


def playground(page: Page) -> None:
    ask(page, "Write to ada.lovelace@mill.example: the wheel turns.", "guarded")
    answer = page.get_by_role("article").last
    expect(answer.get_by_role("group", name="Waterfall of")).to_be_visible()
    answer.evaluate("each => each.scrollIntoView()")


def live(page: Page) -> None:
    """Some seconds of the small charts, while the page itself asks another question every half second."""
    page.evaluate(LOAD, KEYS["bakery"])
    go(page, "live")
    page.wait_for_timeout(9000)


def money(page: Page) -> None:
    go(page, "traffic")
    page.get_by_label("Group by").select_option("tenant")
    expect(page.get_by_role("table", name="By tenant")).to_be_visible()


def policies(page: Page) -> None:
    go(page, "policies")
    editor = page.locator("textarea")
    expect(editor).not_to_have_value("")
    editor.fill(editor.input_value().replace("model: far-away\n  guarded", "model: far-awya\n  guarded"))
    expect(page.locator("ul.problems .bad")).to_be_visible()


SHOTS = (
    ("playground", playground, TALL, False),
    ("playground-narrow", playground, NARROW, True),
    ("live", live, SIZE, True),
    ("money", money, SIZE, False),
    ("policies", policies, SIZE, True),
)


def main() -> None:
    """Write all of them."""
    with gateway() as server, chromium() as browser:
        pages = Watched(browser, server.root_url)
        for name, show, size, is_dark in SHOTS:
            page = signed_in(pages, KEYS["miller"], size=size, is_dark=is_dark)
            show(page)
            take(page, name)
            page.close()
        pages.close()


if __name__ == "__main__":
    main()
