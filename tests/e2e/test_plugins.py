"""A package that adds a provider API and a check, in the real server, without a change to Penstock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from tests.e2e.http_thread import HttpThread
from tests.e2e.server import Server
from tests.plugins.install import install_example

POLICIES = """\
models:
  polly:
    upstream: {api: parrot, base_url: URL, model: ara, api_key_env: PARROT_KEY}
"""
GUARDED = """\
routes:
  quiet: {model: polly, guardrails: quiet}
  noted: {model: polly, guardrails: noted}
  answers: {model: polly, guardrails: answers}
guardrails:
  profiles:
    quiet: {expose: true, checks: {calm: {check: shouting, options: {max_capitals: 0.5}}}}
    noted: {expose: true, checks: {calm: {check: shouting, action: flag}}}
    answers: {checks: {calm: {check: shouting, requests: false, answers: true}}}
"""


class Parrot(HttpThread):
    """Repeats the last words, whole or in pieces; `seen` has every request."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        super().__init__()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/talk", self._talk)

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append({**body, "key": request.headers["x-parrot-key"]})
        words = body["turns"][-1]["says"][-1]["words"]
        end = {"is_last": True, "num_read": 7, "num_said": 2}
        if not body["stream"]:
            return web.json_response({"words": words, **end})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in (*({"words": letter} for letter in words), end):
            await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
        return response


@pytest.fixture(scope="module")
def parrot() -> Iterator[Parrot]:
    parrot = Parrot()
    yield parrot
    parrot.close()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of processes that have the package."""
    site = tmp_path_factory.mktemp("site")
    install_example(site)
    return {"PYTHONPATH": f"{site}:{Path(__file__).parents[2]}", "PARROT_KEY": "key-of-the-parrot"}


@pytest.fixture(scope="module")
def http(
    parrot: Parrot, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("parrot")
    (folder / "policies.yaml").write_text(POLICIES.replace("URL", parrot.base_url) + GUARDED)
    server = Server(folder / "log.txt", "--policies", str(folder / "policies.yaml"), environment=environment)
    try:
        server.wait_ready()
        with httpx.Client(base_url=server.base_url, timeout=20.0) as client:
            yield client
    finally:
        server.close()


def chat(http: httpx.Client, text: str, **fields: object) -> httpx.Response:
    body = {"model": "polly", "messages": [{"role": "user", "content": text}], **fields}
    return http.post("/chat/completions", json=body)


def test_an_added_api_answers(http: httpx.Client, parrot: Parrot) -> None:
    answer = chat(http, "good day").json()
    assert answer["choices"][0]["message"]["content"] == "good day"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (7, 2)
    seen = parrot.seen[-1]
    assert (seen["bird"], seen["key"]) == ("ara", "key-of-the-parrot")


def test_an_added_api_streams(http: httpx.Client) -> None:
    lines = chat(http, "good day", stream=True).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    pieces = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(pieces) == "good day" and len(list(filter(None, pieces))) > 1
    assert lines[-2:] == ["data: [DONE]", ""]


def test_its_fields_and_calls_of_other_endpoints_are_refused(http: httpx.Client) -> None:
    error = chat(http, "x", tools=[{"type": "function", "function": {"name": "f"}}]).json()["error"]
    assert error["param"] == "tools" and "Parrot's API" in error["message"]
    error = http.post("/embeddings", json={"model": "polly", "input": "x"}).json()["error"]
    assert error["code"] == "model_not_supported"


LOUD = "DO IT NOW, PLEASE"


@pytest.mark.parametrize("stream", [False, True])
def test_an_added_check_refuses_requests(http: httpx.Client, parrot: Parrot, stream: bool) -> None:
    num_seen = len(parrot.seen)
    answer = chat(http, LOUD, model="quiet", stream=stream)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "content_filter"
    assert answer.headers["x-penstock-guardrails"] == "check:calm/capitals=1"
    assert len(parrot.seen) == num_seen


@pytest.mark.parametrize(
    "text", ["do it now, please", "OK", "Straße ÄÖÜ, leise bitte", "🦜" * 50, "12345678"]
)
def test_an_added_check_lets_others_pass(http: httpx.Client, text: str) -> None:
    answer = chat(http, text, model="quiet")
    assert answer.json()["choices"][0]["message"]["content"] == text
    assert "x-penstock-guardrails" not in answer.headers


def test_a_flag_is_only_told(http: httpx.Client) -> None:
    answer = chat(http, LOUD, model="noted")
    assert answer.status_code == 200 and answer.headers["x-penstock-guardrails"] == "check:calm/capitals=1"


def test_answers_are_checked_before_any_of_it_is_sent(http: httpx.Client) -> None:
    answer = chat(http, LOUD, model="answers").json()["choices"][0]
    assert (answer["message"]["content"] or "", answer["finish_reason"]) == ("", "content_filter")
    lines = chat(http, LOUD, model="answers", stream=True).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert not any(choice["delta"].get("content") for choice in choices)
    assert choices[-1]["finish_reason"] == "content_filter"
    answer = chat(http, "as you like", model="answers").json()["choices"][0]
    assert answer["message"]["content"] == "as you like"


def penstock_check(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli", "check", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_check_knows_what_is_added(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "a.yaml").write_text(POLICIES.replace("URL", "http://127.0.0.1:1/v1"))
    assert "polly (upstream)" in penstock_check(tmp_path, environment).stdout
    (tmp_path / "a.yaml").write_text(POLICIES.replace("URL", "http://h/v1").replace("parrot,", "parot,"))
    assert "3:21: models.polly.upstream.api" in (text := penstock_check(tmp_path, environment).stderr)
    assert "did you mean 'parrot'?" in text


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "check: shouting,",
            "check: shoutin,",
            ":10:50: guardrails.profiles.quiet.checks.calm.check must be one of known_attacks, "
            "personal_data, shouting, not 'shoutin'; did you mean 'shouting'?",
        ),
        (
            "max_capitals: 0.5",
            "max_capitals: 5",
            ":10:60: guardrails.profiles.quiet.checks.calm.options: Expected `float` <= 1.0 - at "
            "`$.max_capitals`",
        ),
        ("max_capitals: 0.5", "capitals: 0.5", "calm.options: Object contains unknown field `capitals`"),
    ],
)
def test_check_names_a_slip(
    right: str, wrong: str, said: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    text = (POLICIES + GUARDED).replace("URL", "http://h/v1")
    (tmp_path / "a.yaml").write_text(text.replace(right, wrong, 1))
    assert said in penstock_check(tmp_path, environment).stderr
