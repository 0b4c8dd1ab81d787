"""What a client of the OpenAI SDK uses is charged, streamed or not, and its tenant's limits hold."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from gateway.auth import tenant_id
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server, wait_until
from tests.e2e.test_openai_sdk import ask, text_of
from tests.e2e.upstream import Upstream

KEYS = {name: f"sk-usage-{name}" for name in ("tokens", "usd", "free", "cache")}
POLICIES = """
models:
  remote:
    upstream: {{base_url: {url}}}
    price: {{input_usd_per_million_tokens: 1000000, output_usd_per_million_tokens: 1000000}}
  cached:
    upstream: {{base_url: {url}}}
    price: {{input_usd_per_million_tokens: 1000000, output_usd_per_million_tokens: 1000000}}
    cache: {{mode: exact}}
tenants:
  {tokens}: {{limits: {{tokens_per_minute: 20}}}}
  {usd}: {{limits: {{usd_per_day: 20}}}}
  {cache}: {{limits: {{usd_per_day: 9}}}}
"""
WAIT_S = 10.0

Sdk = Callable[[str], openai.OpenAI]


@pytest.fixture(scope="module")
def remote() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.released.set()
    upstream.close()


@pytest.fixture(scope="module")
def priced(
    start_module_server: StartServer, remote: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    folder: Path = tmp_path_factory.mktemp("policies")
    tenants = {name: tenant_id(key) for name, key in KEYS.items()}
    (folder / "all.yaml").write_text(POLICIES.format(url=remote.base_url, **tenants))
    keys = {"PENSTOCK_API_KEYS": ",".join(KEYS.values())}
    server = start_module_server("--policies", str(folder), environment=keys)
    server.api_key = KEYS["free"]  # reads the metrics
    return server


@pytest.fixture
def sdk(priced: Server) -> Iterator[Sdk]:
    with contextlib.ExitStack() as clients:
        yield lambda name: clients.enter_context(
            openai.OpenAI(base_url=priced.base_url, api_key=KEYS[name], max_retries=0)
        )


def stream(client: openai.OpenAI, text: str, model: str = "remote") -> openai.Stream[ChatCompletionChunk]:
    """Ask as a client does by default: without stream_options."""
    return client.chat.completions.create(model=model, messages=ask(text), stream=True)


class Counted:
    """Tokens of a model since now."""

    def __init__(self, server: Server, model: str = "remote") -> None:
        self._server = server
        self._model = model
        server.settle()
        self._before = {kind: self._now(kind) for kind in ("input", "output", "estimated")}

    def _now(self, kind: str) -> float:
        return self._server.metric("penstock_tokens_total", model=self._model, kind=kind)

    def __call__(self, kind: str) -> float:
        return self._now(kind) - self._before[kind]

    def wait(self, **tokens: int) -> None:
        def found() -> dict[str, float]:
            return {kind: self(kind) for kind in tokens}

        wait_until(lambda: found() == tokens, WAIT_S, lambda: f"{found()}")


@pytest.mark.parametrize(("name", "code"), [("tokens", "rate_limit_exceeded"), ("usd", "budget_exceeded")])
def test_a_default_client_that_streams_runs_into_its_limit(
    sdk: Sdk, remote: Upstream, name: str, code: str
) -> None:
    for _ in range(3):  # 8 tokens each: the third one passes the 20 that are allowed
        chunks = list(stream(sdk(name), "hello"))
        assert text_of(chunks) == "echo: hello"
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        assert remote.seen[-1].body["stream_options"] == {"include_usage": True}
    with pytest.raises(openai.RateLimitError) as refused:
        stream(sdk(name), "hello")
    assert refused.value.code == code


def test_a_stream_that_breaks_is_charged(sdk: Sdk, priced: Server) -> None:
    counted = Counted(priced)
    with pytest.raises(openai.APIError):
        list(stream(sdk("free"), "cut"))
    counted.wait(input=1, output=3, estimated=4)  # "cut" and "echo: cut"


def test_a_client_that_leaves_stops_the_upstream_and_pays(sdk: Sdk, priced: Server, remote: Upstream) -> None:
    counted = Counted(priced)
    remote.left.clear()
    answer = stream(sdk("free"), "drip")
    for _ in range(10):
        next(answer)
    answer.close()
    assert remote.left.wait(WAIT_S)
    wait_until(lambda: counted("output") >= 9, WAIT_S, lambda: f"{counted('output')}")
    assert counted("output") < 200 and counted("estimated") == counted("output") + counted("input")


def test_a_client_that_leaves_before_the_first_byte_pays_its_prompt(priced: Server, remote: Upstream) -> None:
    counted, num_seen = Counted(priced), len(remote.seen)
    body = {"model": "remote", "messages": ask("hold it"), "stream": True}
    headers = priced.headers | {"content-type": "application/json"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", priced.port)) as client:
        client.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        wait_until(lambda: len(remote.seen) == num_seen + 1, WAIT_S, lambda: "not asked")
    counted.wait(input=2, output=0, estimated=2)  # 7 characters


def test_a_stored_answer_is_free(sdk: Sdk) -> None:
    for _ in range(5):  # the first one costs 8 USD of 9
        assert text_of(list(stream(sdk("cache"), "again", "cached"))) == "echo: again"
    list(stream(sdk("cache"), "other", "cached"))
    with pytest.raises(openai.RateLimitError):
        stream(sdk("cache"), "third", "cached")


def test_a_generation_that_two_share_is_charged_once(sdk: Sdk, priced: Server, remote: Upstream) -> None:
    counted, num_seen = Counted(priced, "cached"), len(remote.seen)
    leader, follower = [stream(sdk("free"), "drip", "cached") for _ in range(2)]
    next(leader)
    next(follower)
    leader.close()
    next(follower)
    assert counted("output") == 0 and len(remote.seen) == num_seen + 1
    remote.released.set()
    assert text_of(list(follower)).endswith("drop")
    counted.wait(input=5, output=3, estimated=0)
