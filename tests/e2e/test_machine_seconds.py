"""What the real engine has worked is shared among its answers, shown where the policies say so, and paid."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.auth import tenant_id
from tests.e2e.conftest import StartServer
from tests.e2e.server import SMALL_ENGINE, Server

MODEL = SMALL_ENGINE.removeprefix("{").removesuffix("}")
SECONDS = "input_usd_per_million_tokens: 0, output_usd_per_million_tokens: 0, machine_second_usd: 1"
LIMIT_USD = 2.0
"""Several answers, also where one takes half a second."""
POLICIES = f"""
models:
  ours: {{{MODEL}, price: {{{SECONDS}}}}}
  cached: {{{MODEL}, price: {{{SECONDS}}}, cache: {{mode: exact}}}}
routing: {{expose: true}}
tenants: {{POOR: {{limits: {{usd_per_day: {LIMIT_USD}}}}}}}
"""
RICH, POOR = "sk-seconds-rich", "sk-seconds-poor"
TEXT = "Sort these numbers in ascending order: 41, 7, 93, 18, 66, 25, 80, 3."


@pytest.fixture(scope="module")
def exposing(start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder: Path = tmp_path_factory.mktemp("policies")
    (folder / "all.yaml").write_text(POLICIES.replace("POOR", tenant_id(POOR)))
    keys = {"PENSTOCK_API_KEYS": f"{RICH},{POOR}"}
    server = start_module_server("--policies", str(folder), environment=keys)
    server.api_key = RICH
    return server


@pytest.fixture
def sdk(exposing: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=exposing.base_url, api_key=RICH, max_retries=0) as client:
        yield client


def told(answer: Any) -> float:  # noqa: ANN401
    """The seconds in an answer's usage."""
    usage = answer.usage.model_dump() if hasattr(answer, "usage") else answer["usage"]
    return float(usage["x_penstock"]["machine_seconds"])


def worked(server: Server, model: str = "ours") -> float:
    """Seconds of all time, once the engine has reported the end of its work."""
    labels = {"model": model}
    idle = server.metric("penstock_engine_machine_seconds_total", state="idle", **labels)
    server.wait_metric(
        "penstock_engine_machine_seconds_total", lambda seconds: seconds > idle + 0.5, state="idle", **labels
    )
    assert server.metric("penstock_engine_running_requests", **labels) == 0
    return server.metric("penstock_engine_machine_seconds_total", state="work", **labels)


def ask(sdk: openai.OpenAI, number: int) -> float:
    """One answer, of another endpoint each time; its seconds."""
    text, options = f"{number}: {TEXT}", {"model": "ours"}
    chat: dict[str, Any] = {**options, "messages": [{"role": "user", "content": text}], "max_tokens": 30}
    if number % 5 == 0:
        return told(sdk.chat.completions.create(**chat, n=2))
    if number % 5 == 1:
        usage = {"include_usage": True}
        *_, last = sdk.chat.completions.create(**chat, stream=True, stream_options=usage)
        return told(last)
    if number % 5 == 2:
        return told(sdk.completions.create(**options, prompt=text, max_tokens=30))
    if number % 5 == 3:
        return told(sdk.responses.create(**options, input=text, max_output_tokens=30))
    url = str(sdk.base_url).rstrip("/") + "/messages"
    return told(httpx.post(url, json=chat, headers={"x-api-key": RICH}, timeout=60).raise_for_status().json())


def test_answers_share_what_the_engine_has_worked(exposing: Server, sdk: openai.OpenAI) -> None:
    before = worked(exposing)
    with ThreadPoolExecutor(8) as pool:
        seconds = list(pool.map(lambda number: ask(sdk, number), range(20)))
    assert min(seconds) > 0
    assert sum(seconds) == pytest.approx(worked(exposing) - before, rel=0.02)


def test_streams_that_clients_leave_take_their_part(exposing: Server, sdk: openai.OpenAI) -> None:
    """They are told nothing, but no other answer pays for them."""
    before = worked(exposing)
    body = {"model": "ours", "max_tokens": 200, "ignore_eos": True, "n": 2}
    messages = [{"role": "user", "content": TEXT}]
    begun = threading.Barrier(4)

    def leave() -> None:
        with sdk.chat.completions.create(
            model="ours", messages=messages, stream=True, max_tokens=200, extra_body=body
        ) as stream:  # type: ignore[call-overload]
            next(iter(stream))
            begun.wait(60)

    with ThreadPoolExecutor(4) as pool:
        leavers = [pool.submit(leave) for _ in range(3)]
        begun.wait(60)
        seconds = ask(sdk, 0)
        for each in leavers:
            each.result()
    assert 0 < seconds < worked(exposing) - before


def test_a_hit_in_the_cache_takes_none(exposing: Server, sdk: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": TEXT}]
    first = sdk.chat.completions.create(model="cached", messages=messages, temperature=0)
    before = worked(exposing, "cached")
    again = sdk.chat.completions.create(model="cached", messages=messages, temperature=0)
    assert worked(exposing, "cached") == before
    assert told(first) > 0 and again.choices[0].message.content == first.choices[0].message.content


def test_seconds_are_paid(exposing: Server) -> None:
    """Tokens cost nothing here: the tenant's limit stops seconds, set aside before they are worked."""
    messages, seconds = [{"role": "user", "content": TEXT}], [0.0]
    with (
        openai.OpenAI(base_url=exposing.base_url, api_key=POOR, max_retries=0) as poor,
        pytest.raises(openai.RateLimitError, match="USD per day"),
    ):
        for _ in range(500):
            answer = poor.chat.completions.create(model="ours", messages=messages, max_tokens=20)
            seconds.append(told(answer))
    # What is set aside is an estimate: a step may take longer than those before it.
    assert 0 < sum(seconds[:-1]) < LIMIT_USD and sum(seconds) <= LIMIT_USD + max(seconds)


def test_they_are_shown_only_where_the_policies_say_so(server: Server) -> None:
    body = {"model": "pico-small", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 5}
    answer = httpx.post(
        server.base_url + "/chat/completions", json=body, headers=server.headers, timeout=60
    ).json()
    assert answer["usage"]["completion_tokens"] and "x_penstock" not in answer["usage"]
