"""The playground against scripted answers: what it sends, what it shows, and texts that would like to run."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.browser.watched import SCRIPTED, Watched, gives_file

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`${alert(3)}&lt;"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": HOSTILE, "arguments": '{"a'}}
REST = {"index": 0, "function": {"arguments": '": 1}'}}


class Gateway:
    """Answers the page's requests; the next answer of a model is what a test has put here."""

    def __init__(self) -> None:
        self.models = ["one", "two", HOSTILE]
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: str | Callable[[Route], None] = stream({"content": "fine"})
        self.status = 200

    def handle(self, route: Route) -> None:
        path = route.request.url.removeprefix(SCRIPTED)
        self.headers.append(route.request.headers)
        if gives_file(route):
            return
        if path == "/v1/models":
            encoder = {"id": "encoder", "mode": "embedding"}
            route.fulfill(json={"data": [encoder, *({"id": name} for name in self.models)]})
        elif path == "/v1/chat/completions":
            self.bodies.append(route.request.post_data_json)
            if callable(self.answer):
                self.answer(route)
            else:
                kind = "text/event-stream" if self.status == 200 else "application/json"
                route.fulfill(status=self.status, body=self.answer, content_type=kind)
        else:
            route.fulfill(status=403, json={"error": {"message": "not an operator"}})


def stream(*deltas: dict[str, Any], end: str = "data: [DONE]\n\n") -> str:
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(deltas)}})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end


@pytest.fixture(scope="module")
def opened(scripted: Watched) -> Page:
    return scripted.open()


@pytest.fixture
def gateway(opened: Page) -> Iterator[Gateway]:
    gateway = Gateway()
    opened.route("**/*", gateway.handle)
    yield gateway
    opened.unroute("**/*")


@pytest.fixture
def page(opened: Page, scripted: Watched, gateway: Gateway) -> Iterator[Page]:
    """The playground as it is at first; nothing may go wrong in it."""
    opened.goto("about:blank")
    opened.goto(f"{SCRIPTED}/console/#playground")
    opened.get_by_label("Prompt").wait_for()
    yield opened
    faults = [*scripted.faults]
    scripted.faults.clear()
    assert faults == []


def send(page: Page, text: str) -> None:
    page.get_by_label("Prompt").fill(text)
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop").and_(page.locator(":disabled")).wait_for()


def shown(page: Page) -> str:
    return page.locator("article").first.inner_text()


def test_a_conversation_goes_on(page: Page, gateway: Gateway) -> None:
    send(page, "hello")
    assert "fine" in shown(page) and "3 in, 1 out" in shown(page)
    send(page, "again")
    roles = [[turn["role"] for turn in body["messages"]] for body in gateway.bodies]
    assert roles == [["user"], ["user", "assistant", "user"]]
    page.get_by_role("button", name="Clear").click()
    send(page, "new")
    assert len(gateway.bodies[-1]["messages"]) == 1


def test_encoders_are_not_offered(page: Page, gateway: Gateway) -> None:
    assert page.get_by_label("Model, adapter or route").locator("option").all_inner_texts() == gateway.models


def test_every_field_is_sent(page: Page, gateway: Gateway) -> None:
    page.get_by_text("System text, tools").click()
    schema = {"type": "object", "properties": {"ä": {"type": "string"}}}
    for label, value in {
        "System text": "be brief",
        "Tools (JSON)": json.dumps(TOOLS),
        "JSON schema of the answer": json.dumps(schema),
        "Most tokens": "7",
        "Temperature": "0.5",
        "Image URL (upstreams)": "https://images.test/a.png",
    }.items():
        page.get_by_label(label).fill(value)
    page.get_by_label("Reasoning effort").select_option("low")
    page.get_by_label("Model, adapter or route").select_option("two")
    send(page, "what is this?")
    image = {"type": "image_url", "image_url": {"url": "https://images.test/a.png"}}
    assert gateway.bodies == [
        {
            "model": "two",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]},
            ],
            "tools": TOOLS,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            },
            "reasoning_effort": "low",
            "max_completion_tokens": 7,
            "temperature": 0.5,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


@pytest.mark.parametrize(
    ("label", "value", "error"),
    [
        ("Tools (JSON)", "[{", "Tools:"),
        ("JSON schema of the answer", "nope", "JSON schema:"),
        ("Most tokens", "many", "Most tokens: many is no number"),
        ("Temperature", "NaN", "Temperature: NaN is no number"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(
    page: Page, gateway: Gateway, label: str, value: str, error: str
) -> None:
    page.get_by_text("System text, tools").click()
    page.get_by_label(label).fill(value)
    page.get_by_label("Prompt").fill("hello")
    page.get_by_role("button", name="Send").click()
    assert error in page.get_by_role("alert").inner_text()
    assert gateway.bodies == [] and page.get_by_label("Prompt").input_value() == "hello"


def test_two_models_side_by_side(page: Page, gateway: Gateway) -> None:
    page.get_by_label("Compare two").check()
    send(page, "hello")
    assert [body["model"] for body in gateway.bodies] == ["one", "two"]
    assert page.get_by_role("article").count() == 2


def test_a_tools_result_is_the_next_prompt(page: Page, gateway: Gateway) -> None:
    gateway.answer = stream({"tool_calls": [CALL]}, {"tool_calls": [REST]})
    send(page, "call it")
    assert '({"a": 1})' in shown(page)
    gateway.answer = stream({"content": "done"})
    send(page, "42")
    called = {"id": "call_1", "type": "function", "function": {"name": HOSTILE, "arguments": '{"a": 1}'}}
    assert gateway.bodies[-1]["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]


PARTS = ("content", "reasoning_content", "name", "arguments", "error", "prompt", "model")


def test_texts_never_run(page: Page, gateway: Gateway) -> None:
    """The page's own watch finds a dialog, a blocked script and a request for an image."""
    for part in PARTS:
        gateway.status, gateway.answer = 200, stream({"content": "fine"})
        if part == "error":
            gateway.status, gateway.answer = 400, json.dumps({"error": {"message": HOSTILE}})
        elif part in ("name", "arguments"):
            function = {"name": "f", "arguments": ""} | {part: HOSTILE}
            gateway.answer = stream({"tool_calls": [{"index": 0, "id": "1", "function": function}]})
        elif part in ("content", "reasoning_content"):
            gateway.answer = stream({part: HOSTILE[:9]}, {part: HOSTILE[9:]})
        elif part == "model":
            page.get_by_label("Model, adapter or route").select_option(HOSTILE)
        page.get_by_role("button", name="Clear").click()
        send(page, HOSTILE if part == "prompt" else "hello")
        assert HOSTILE in page.locator("main").inner_text() or part == "model", part
        for name in ("Show as curl", "Show as Python"):
            page.get_by_role("button", name=name).click()
        assert page.locator("main img, main script").count() == 0, part


ODD = (
    (stream({"content": "par"}, end='data: {"error": {"message": "the model has died"}}\n\n'), "has died"),
    ("data: {broken\n\n", "JSON"),
    ("", ""),
    (": ping\n\n" + stream({"content": "late"}).replace("\n", "\r\n"), "late"),
    ("event: x\nid: 1\n" + stream({"content": "named"}), "named"),
    (stream({"content": "cut"}).partition("data: [DONE]")[0].rstrip(), "cut"),
    (stream({"content": "🜁 مرحبا 你好 \u202eabc"}), "مرحبا"),
    (stream(*[{"content": "x" * 100}] * 2000), "x" * 100_000),
    (stream({"content": None, "role": "assistant"}, {}, {"content": ""}), "3 out"),
    ('data: {"choices": []}\n\ndata: [DONE]\n\n', ""),
)


def test_streams_that_are_odd(page: Page, gateway: Gateway) -> None:
    for gateway.answer, expected in ODD:
        send(page, "hello")
        assert expected in shown(page)


def test_a_text_from_right_to_left_is_shown_so(page: Page, gateway: Gateway) -> None:
    gateway.answer = stream({"content": "مرحبا abc"})
    send(page, "مرحبا بالعالم")
    for part in page.locator("article .answer:not([hidden])").all():
        assert part.evaluate("node => getComputedStyle(node).direction") == "rtl"


ERRORS = (
    (429, '{"error": {"message": "slow down"}}', "slow down"),
    (502, "<html>bad gateway</html>", "The gateway answered 502."),
    (500, "", "The gateway answered 500."),
    (400, "[]", "The gateway answered 400."),
    (403, "null", "The gateway answered 403."),
)


def test_errors_are_shown_and_leave_the_conversation_as_it_was(page: Page, gateway: Gateway) -> None:
    for gateway.status, gateway.answer, expected in ERRORS:
        send(page, "hello")
        assert expected in shown(page)
    gateway.status, gateway.answer = 200, stream({"content": "fine"})
    send(page, "again")
    assert [turn["content"] for turn in gateway.bodies[-1]["messages"]] == ["again"]


def test_a_gateway_that_is_gone(page: Page, gateway: Gateway, scripted: Watched) -> None:
    gateway.answer = lambda route: route.abort("connectionrefused")
    send(page, "hello")
    assert "does not answer" in shown(page)
    scripted.faults.clear()  # Chromium writes of it


def test_send_and_stop_hand_on_the_focus_and_waiting_shows(page: Page, gateway: Gateway) -> None:
    held: list[Route] = []
    gateway.answer = held.append
    page.get_by_label("Prompt").fill("hello")
    page.get_by_role("button", name="Send").press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    expect(page.locator("body[data-busy]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_focused()
    expect(page.locator("body[data-busy]")).to_have_count(0)


def test_stop_ends_the_request(page: Page, gateway: Gateway) -> None:
    held: list[Route] = []
    gateway.answer = held.append
    page.get_by_label("Prompt").fill("hello")
    page.get_by_role("button", name="Send").click()
    with page.expect_event("requestfailed"):
        page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    assert len(held) == 1


PROMPTS = ("it's", "a\\'b\n$HOME `id` $(id) !!", '"quoted" \\n \\u0041', "🜁 \u2028 é \x7f", "%s {x}")


def test_snippets_say_the_same_as_the_page(page: Page, gateway: Gateway) -> None:
    for prompt in PROMPTS:
        page.get_by_label("Prompt").fill(prompt)
        page.get_by_role("button", name="Show as curl").click()
        snippet = page.get_by_label("The request")
        words = shlex.split(str(snippet.text_content()).replace("\\\n", ""))
        page.get_by_role("button", name="Show as Python").click()
        program = ast.parse(str(snippet.text_content()))
        send(page, prompt)
        body = gateway.bodies[-1]
        assert words[:3] == ["curl", "-N", f"{SCRIPTED}/v1/chat/completions"]
        assert json.loads(words[-1]) == body
        calls = [node for node in ast.walk(program) if isinstance(node, ast.Call) and node.keywords]
        create = max(calls, key=lambda call: len(call.keywords))
        assert {str(each.arg): ast.literal_eval(each.value) for each in create.keywords} == body


def test_the_key_is_sent_in_a_header_only(page: Page, gateway: Gateway) -> None:
    page.get_by_role("button", name="API key").click()
    page.get_by_label("Key").fill("sk-secret")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Prompt").wait_for()
    send(page, "hello")
    assert gateway.headers[-1]["authorization"] == "Bearer sk-secret"
    assert (
        page.evaluate("document.cookie + location.href + localStorage.length")
        == f"{SCRIPTED}/console/#playground0"
    )
    page.get_by_role("button", name="Show as curl").click()
    assert "sk-secret" not in page.content()
