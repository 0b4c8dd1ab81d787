"""Every endpoint in front of every provider, asked with the official client of its API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.apis.clients import CLIENTS, Asked, Client
from tests.e2e.apis.matrix import DOCUMENT, ENDPOINTS, PROVIDERS, written
from tests.e2e.apis.scripted import SIGNATURE
from tests.e2e.apis.upstream import COUNT, ApiUpstream
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server, wait_until

POLICIES = """
models:
  openai: {{upstream: {{base_url: "{url}"}}}}
  anthropic: {{upstream: {{api: anthropic, base_url: "{url}"}}}}
  gemini: {{upstream: {{api: gemini, base_url: "{url}", model: gemini-3}}}}
  bedrock: {{upstream: {{api: bedrock, base_url: "{url}", model: anthropic.there}}}}
  azure:
    upstream:
      base_url: "{url}/openai/v1"
      api_key_header: api-key
      api_key_env: AZURE_KEY
"""
ENVIRONMENT = {
    "AZURE_KEY": "azure-key",
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "eu-west-1",
}
MODELS = {provider: "pico-large" if provider == "engine" else provider for provider in PROVIDERS}
SUM = "What is 17 + 25?"
CALL = "What is 417 + 256?"
LONG = "Copy: " + " ".join(f"river{number} stone{number}" for number in range(60))
"""Answered with more than a thousand tokens."""
pairs = pytest.mark.parametrize(
    ("endpoint", "provider"), [(endpoint, provider) for endpoint in ENDPOINTS for provider in PROVIDERS]
)


@pytest.fixture(scope="module")
def apis() -> Iterator[ApiUpstream]:
    apis = ApiUpstream()
    yield apis
    apis.close()


@pytest.fixture(scope="module")
def gateway(
    start_module_server: StartServer, apis: ApiUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """A gateway in front of the scripted upstreams only."""
    folder: Path = tmp_path_factory.mktemp("policies")
    (folder / "models.yaml").write_text(POLICIES.format(url=apis.base_url))
    return start_module_server("--policies", str(folder), environment=ENVIRONMENT)


@pytest.fixture
def client(endpoint: str, provider: str, server: Server, gateway: Server) -> Iterator[Client]:
    found = CLIENTS[endpoint](server if provider == "engine" else gateway)
    yield found
    found.close()


@pairs
def test_text_and_stream(client: Client, provider: str) -> None:
    whole = client.ask(MODELS[provider], Asked(SUM))
    streamed = client.ask(MODELS[provider], Asked(SUM, stream=True))
    assert "42" in whole.text and whole.calls == []
    assert streamed.shown == whole.shown and whole.output_tokens > 0


@pairs
def test_tools(client: Client, provider: str) -> None:
    for stream in (False, True):
        asked = Asked(CALL, stream=stream, tools=True)
        called = client.ask(MODELS[provider], asked)
        assert called.calls == [("calculator", {"expression": "417 + 256"})]
        assert "673" in client.give_result(MODELS[provider], asked, called, "673").text


@pairs
def test_structured(client: Client, provider: str) -> None:
    for stream in (False, True):
        found = client.ask(MODELS[provider], Asked(SUM, stream=stream, schema=True))
        assert isinstance(json.loads(found.text)["sum"], int)


@pairs
def test_reasoning(client: Client, provider: str) -> None:
    whole = client.ask(MODELS[provider], Asked(SUM, reasoning=True))
    streamed = client.ask(MODELS[provider], Asked(SUM, stream=True, reasoning=True))
    assert "17" in whole.reasoning and "42" in whole.text and streamed.shown == whole.shown


@pairs
def test_reasoning_in_a_tool_loop(client: Client, provider: str, apis: ApiUpstream) -> None:
    asked = Asked(CALL, tools=True, reasoning=True)
    called = client.ask(MODELS[provider], asked)
    assert called.reasoning and called.calls
    assert "673" in client.give_result(MODELS[provider], asked, called, "673").text
    if provider in ("anthropic", "gemini", "bedrock"):
        assert apis.last_body.count(SIGNATURE) == 1


@pairs
def test_images(client: Client, provider: str) -> None:
    asked = Asked("What is this?", image=True)
    if provider == "engine":
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="Images"):
            client.ask(MODELS[provider], asked)
    else:
        assert client.ask(MODELS[provider], asked).text == "an image"


@pairs
@pytest.mark.parametrize("stream", [False, True])
def test_errors(client: Client, provider: str, stream: bool) -> None:
    if provider == "engine":
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="maximum context"):
            client.ask(MODELS[provider], Asked("word " * 3000, stream=stream))
    else:
        with pytest.raises((openai.RateLimitError, anthropic.RateLimitError), match="scripted"):
            client.ask(MODELS[provider], Asked("fail", stream=stream))


@pairs
def test_a_client_that_leaves(client: Client, provider: str, server: Server, apis: ApiUpstream) -> None:
    num_dropped = apis.num_dropped
    labels = {"model": "pico-large", "finish_reason": "abort"}
    num_aborted = server.metric("penstock_engine_requests_total", **labels)
    text = LONG if provider == "engine" else "wait"
    with contextlib.closing(client.pieces(MODELS[provider], text)) as pieces:
        next(pieces)
    if provider == "engine":
        server.wait_metric("penstock_engine_requests_total", lambda value: value > num_aborted, **labels)
    else:
        wait_until(lambda: apis.num_dropped == num_dropped + 1, 10.0, lambda: "the stream still runs")


def test_keys_are_sent_as_each_service_wants_them(gateway: Server, apis: ApiUpstream) -> None:
    with openai.OpenAI(base_url=gateway.base_url, api_key="none", max_retries=0) as client:
        for model in ("azure", "bedrock"):
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": SUM}])
            if model == "azure":
                assert apis.last_headers["api-key"] == "azure-key"
    assert apis.last_headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")


def test_tokens_are_counted_where_something_can(gateway: Server) -> None:
    messages: Any = [{"role": "user", "content": SUM}]
    with anthropic.Anthropic(base_url=gateway.root_url, api_key="none", max_retries=0) as client:
        assert client.messages.count_tokens(model="anthropic", messages=messages).input_tokens == COUNT
        with pytest.raises(anthropic.NotFoundError, match="no tokenizer"):
            client.messages.count_tokens(model="openai", messages=messages)


def test_the_table_in_the_docs_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == written(text), "write it anew: python -m tests.e2e.apis.matrix"
