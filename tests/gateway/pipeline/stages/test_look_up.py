"""The cache through the real application, with a scripted provider and a scripted encoder."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.routing import Router

from cache.semantic_cache import SemanticCache
from gateway.answer import Delta, Relayed, ToolCallDelta, Usage
from gateway.errors import TimedOut
from gateway.providers.base import ModelCall
from gateway.providers.fake import FakeProvider, TextCall
from gateway.settings import Settings
from gateway.telemetry.setup import Tracing
from gateway.wiring.app import build_app
from policies.cache import CacheRules, CacheSection, Storable
from policies.document import EngineModel, ModelEntry, Policies
from policies.guardrails import GuardrailProfile, GuardrailsSection, PersonalDataRules
from policies.routes import Fallback, Route
from policies.upstream import UpstreamModel
from tests.gateway.conftest import http_client
from tests.gateway.connection import Connection, events

CHAT = "/v1/chat/completions"
KEYS = ("sk-alice", "sk-bob")
CALL = ToolCallDelta(0, '{"city": "Oslo"}', "call_1", "weather")
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
PERSONAL = {"role": "user", "content": "What is the balance of my account?"}
CONTACT = {"role": "user", "content": "Write to anna.berg@example.org that it is done."}


def app_of(provider: FakeProvider, *, keys: tuple[str, ...] = (), **rules: Any) -> Router:  # noqa: ANN401
    models = {
        "ours": ModelEntry(engine=EngineModel(checkpoint="/none")),
        "plain": ModelEntry(
            upstream=UpstreamModel(base_url="http://127.0.0.1:1/v1"), cache=CacheRules(mode="none")
        ),
    }
    section = CacheSection(**{"mode": "exact", **rules})
    safe = {"safe": Route(model="ours", fallback=Fallback(any=["plain"]))}
    policies = Policies(models=models, cache=section, routes=safe, version="v1")
    return build_app(Settings(api_keys=keys), policies, dict.fromkeys(models, provider))


def body(text: str = "What is it?", **fields: object) -> dict[str, Any]:
    return {"model": "ours", "messages": [{"role": "user", "content": text}], **fields}


async def outcome(http: httpx.AsyncClient, sent: dict[str, Any], **headers: str) -> str:
    response = await http.post(CHAT, json=sent, headers={k.replace("_", "-"): v for k, v in headers.items()})
    assert response.status_code == 200, response.text
    return response.headers.get("x-penstock-cache", "none")


async def test_the_second_answer_is_stored_and_the_same() -> None:
    provider = FakeProvider()
    async with http_client(app_of(provider)) as http:
        first, second = [(await http.post(CHAT, json=body())) for _ in range(2)]
    assert [each.headers["x-penstock-cache"] for each in (first, second)] == ["miss", "exact"]
    assert second.headers["age"] == "0" and len(provider.asked) == 1
    one, other = first.json(), second.json()
    assert one.pop("id") != other.pop("id")
    assert one.pop("created") <= other.pop("created") and one == other


async def test_a_hit_streams_what_was_not_streamed_and_the_other_way_round() -> None:
    provider = FakeProvider()
    async with http_client(app_of(provider)) as http:
        whole = (await http.post(CHAT, json=body("a"))).json()
        streamed = await http.post(CHAT, json=body("a", stream=True, stream_options={"include_usage": True}))
        *chunks, done = events(streamed.content)
        assert done == "[DONE]" and chunks[-1]["usage"] == whole["usage"]
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1])
        assert text == whole["choices"][0]["message"]["content"] == "Hello, world!"
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        await http.post(CHAT, json=body("b", stream=True))
        assert await outcome(http, body("b")) == "exact"
    assert len(provider.asked) == 2


async def test_a_tenant_never_gets_anothers_answer() -> None:
    provider = FakeProvider()
    async with http_client(app_of(provider, keys=KEYS)) as http:
        found = [await outcome(http, body(), authorization=f"Bearer {key}") for key in (*KEYS, *KEYS)]
    assert found == ["miss", "miss", "exact", "exact"]


async def test_a_shared_scope_is_the_policys_choice() -> None:
    async with http_client(app_of(FakeProvider(), keys=KEYS, scope="shared")) as http:
        found = [await outcome(http, body(), authorization=f"Bearer {key}") for key in KEYS]
    assert found == ["miss", "exact"]


async def test_a_model_without_a_cache_has_no_header() -> None:
    provider = FakeProvider()
    async with http_client(app_of(provider)) as http:
        for _ in range(2):
            assert await outcome(http, body() | {"model": "plain"}) == "none"
    assert len(provider.asked) == 2


async def test_a_route_has_cache_rules_of_its_own() -> None:
    models = {"m": ModelEntry(engine=EngineModel(checkpoint="/none"))}
    routes = {"kept": Route(model="m", cache=CacheRules(mode="exact")), "plain": Route(model="m")}
    provider = FakeProvider()
    app = build_app(Settings(), Policies(models=models, routes=routes, version="v1"), {"m": provider})
    async with http_client(app) as http:
        for route, expected in (("kept", ["miss", "exact"]), ("plain", ["none", "none"])):
            assert [await outcome(http, body() | {"model": route}) for _ in range(2)] == expected
    assert len(provider.asked) == 3


@pytest.mark.parametrize("fields", [{"n": 2}, {"temperature": 1.5}])
async def test_some_requests_bypass_the_cache(fields: dict[str, Any]) -> None:
    async with http_client(app_of(FakeProvider())) as http:
        assert [await outcome(http, body(**fields)) for _ in range(2)] == ["bypass", "bypass"]


async def test_directives() -> None:
    provider = FakeProvider()
    async with http_client(app_of(provider)) as http:
        only = await http.post(CHAT, json=body(), headers={"x-penstock-cache": "only"})
        assert (only.status_code, only.json()["error"]["code"]) == (504, "cache_miss")
        assert await outcome(http, body(), x_penstock_cache="no-store") == "bypass"
        assert await outcome(http, body()) == "miss"
        assert await outcome(http, body(), x_penstock_cache="only") == "exact"
        assert await outcome(http, body(), cache_control="no-cache") == "bypass"
        assert await outcome(http, body(), x_penstock_cache="max-age=60") == "exact"
        bad = await http.post(CHAT, json=body(), headers={"x-penstock-cache": "please"})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-penstock-cache")
    assert len(provider.asked) == 3


@pytest.mark.parametrize("fields", [{"n": 2}, {"temperature": 1.5}, {"model": "plain"}])
async def test_directives_count_where_the_cache_is_not_used(fields: dict[str, Any]) -> None:
    provider = FakeProvider()
    async with http_client(app_of(provider)) as http:
        only = await http.post(CHAT, json=body() | fields, headers={"cache-control": "only-if-cached"})
        assert (only.status_code, only.json()["error"]["code"]) == (504, "cache_miss")
        bad = await http.post(CHAT, json=body() | fields, headers={"x-penstock-cache": "please"})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-penstock-cache")
        vectors = {"model": "ours", "input": "x"}
        other = await http.post("/v1/embeddings", json=vectors, headers={"x-penstock-cache": "only"})
        assert (other.status_code, other.json()["error"]["code"]) == (504, "cache_miss")
    assert not provider.asked


async def test_metadata_gives_directives_too() -> None:
    async with http_client(app_of(FakeProvider())) as http:
        sent = body(metadata={"penstock-cache": "no-store"})
        assert [await outcome(http, sent) for _ in range(2)] == ["bypass", "bypass"]


@pytest.mark.parametrize("finish_reason", ["length", "tool_calls", None])
async def test_an_answer_that_is_not_whole_is_not_stored(finish_reason: Any) -> None:  # noqa: ANN401
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "half", finish_reason=finish_reason)

    async with http_client(app_of(FakeProvider(script))) as http:
        assert [await outcome(http, body()) for _ in range(2)] == ["miss", "miss"]


@pytest.mark.parametrize(
    ("kind", "delta", "fields"),
    [
        ("truncated", Delta(0, "half", finish_reason="length"), {}),
        ("tool_calls", Delta(0, tool_calls=[CALL], finish_reason="tool_calls"), {"tools": TOOLS}),
        ("tool_calls", Delta(0, tool_calls=[CALL], finish_reason="stop"), {"tools": TOOLS}),  # a forced call
        ("personal", Delta(0, "9", finish_reason="stop"), {"messages": [PERSONAL]}),
        ("personal", Delta(0, "9", finish_reason="stop"), {"messages": [CONTACT]}),
    ],
)
async def test_some_answers_are_stored_only_where_the_policy_says_so(
    kind: Storable, delta: Delta, fields: dict[str, Any]
) -> None:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield delta

    for stored, expected in (([], "miss"), ([kind], "exact")):
        async with http_client(app_of(FakeProvider(script), store=stored)) as http:
            first, second = [await http.post(CHAT, json=body() | fields) for _ in range(2)]
        assert [each.headers["x-penstock-cache"] for each in (first, second)] == ["miss", expected]
        assert first.json()["choices"] == second.json()["choices"]


async def test_a_follower_has_a_link_to_the_request_whose_answer_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = asyncio.Event()

    async def script(call: TextCall) -> AsyncIterator[Delta]:
        await go_on.wait()
        yield Delta(0, text="Oslo", finish_reason="stop")

    exporter, spans = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(spans.get_tracer("test"), spans)
    monkeypatch.setattr("gateway.wiring.worker_parts.start_tracing", lambda *_: tracing)
    provider = FakeProvider(script)
    app = app_of(provider)
    requests = [Connection.post(app, CHAT, body()) for _ in range(2)]
    while not provider.asked:
        await asyncio.sleep(0)
    go_on.set()
    for each in requests:
        await each.head()
        await each.body()
    servers: list[ReadableSpan] = []
    while len(servers) < 2:  # they end after the answer
        await asyncio.sleep(0)
        servers = [span for span in exporter.get_finished_spans() if span.name == f"POST {CHAT}"]
    [follower] = [span for span in servers if span.links]
    [leader] = [span for span in servers if not span.links]
    assert follower.links[0].context.span_id == leader.context.span_id


async def test_readers_of_a_tool_call_in_pieces_do_not_change_it_for_each_other() -> None:
    go_on = asyncio.Event()

    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, tool_calls=[ToolCallDelta(0, '{"city": ', "call_1", "weather")])
        await go_on.wait()
        yield Delta(0, tool_calls=[ToolCallDelta(0, '"Oslo"}')], finish_reason="tool_calls")

    provider = FakeProvider(script)
    app = app_of(provider, store=["tool_calls"])
    requests = [Connection.post(app, CHAT, body(tools=TOOLS)) for _ in range(3)]
    while not provider.asked:
        await asyncio.sleep(0)
    go_on.set()
    heads = [(await each.head())[1]["x-penstock-cache"] for each in requests]
    assert sorted(heads) == ["miss", "shared", "shared"]
    answers = [json.loads(await each.body()) for each in requests]
    async with http_client(app) as http:
        answers.append((await http.post(CHAT, json=body(tools=TOOLS))).json())
    found = [each["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] for each in answers]
    assert found == ['{"city": "Oslo"}'] * 4 and len(provider.asked) == 1


async def test_several_choices_are_stored_where_the_policy_says_so() -> None:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        for index in range(2):
            yield Delta(index, f"choice {index}", finish_reason="stop")

    provider = FakeProvider(script)
    async with http_client(app_of(provider, store=["choices"])) as http:
        first, second = [(await http.post(CHAT, json=body(n=2))) for _ in range(2)]
    assert second.headers["x-penstock-cache"] == "exact" and len(provider.asked) == 1
    assert first.json()["choices"] == second.json()["choices"] and len(first.json()["choices"]) == 2


async def test_an_answer_that_changes_with_time_lives_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    monkeypatch.setattr(SemanticCache.__init__, "__defaults__", (lambda: now_s, None))
    async with http_client(app_of(FakeProvider())) as http:
        asked = [body("What is the weather in Oslo?"), body("What is the capital of Norway?")]
        assert [await outcome(http, each) for each in asked] == ["miss", "miss"]
        now_s += 50.0
        assert [await outcome(http, each) for each in asked] == ["exact", "exact"]
        now_s += 20.0
        assert [await outcome(http, each) for each in asked] == ["miss", "exact"]


def guarded_app(provider: FakeProvider, profile: GuardrailProfile, store: list[Storable]) -> Router:
    models = {"ours": ModelEntry(engine=EngineModel(checkpoint="/none"))}
    policies = Policies(
        models=models,
        cache=CacheSection(mode="exact", store=store),
        guardrails=GuardrailsSection(default="p", profiles={"p": profile}),
        version="v1",
    )
    return build_app(Settings(), policies, {"ours": provider})


@pytest.mark.parametrize(("action", "store"), [("flag", []), ("flag", ["flagged"]), ("block", [])])
async def test_an_answer_that_a_guardrail_flags_is_not_kept(action: Any, store: list[Storable]) -> None:  # noqa: ANN401
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "Write to anna.berg@example.org then.", finish_reason="stop")

    provider = FakeProvider(script)
    profile = GuardrailProfile(personal_data=PersonalDataRules(action=action, answers=True))
    async with http_client(guarded_app(provider, profile, store)) as http:
        for _ in range(2):
            await http.post(CHAT, json=body())
            await asyncio.sleep(0)
    assert len(provider.asked) == (1 if store else 2)


async def test_a_refused_request_gets_no_stored_answer() -> None:
    provider = FakeProvider()
    profile = GuardrailProfile(personal_data=PersonalDataRules(action="block"), refusal="No.")
    async with http_client(guarded_app(provider, profile, ["personal"])) as http:
        answers = [(await http.post(CHAT, json=body() | {"messages": [CONTACT]})) for _ in range(2)]
    assert [each.json()["choices"][0]["message"]["content"] for each in answers] == ["No.", "No."]
    assert "x-penstock-cache" not in answers[1].headers and not provider.asked


async def test_a_failed_answer_is_not_stored() -> None:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "half")
        raise ValueError("cut")

    provider = FakeProvider(script)
    async with http_client(app_of(provider)) as http:
        assert [(await http.post(CHAT, json=body())).status_code for _ in range(2)] == [500, 500]
    assert len(provider.asked) == 2


def paused() -> tuple[FakeProvider, asyncio.Event]:
    """A provider that gives one delta and waits for the event."""
    go_on = asyncio.Event()

    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "first ")
        await go_on.wait()
        yield Delta(0, "second", finish_reason="stop")

    return FakeProvider(script), go_on


async def first_piece(connection: Connection) -> str:
    status, headers = await connection.head()
    assert status == 200
    await connection.next()
    return headers["x-penstock-cache"]


async def test_two_hundred_equal_streams_are_one_generation() -> None:
    provider, go_on = paused()
    app = app_of(provider)
    streams = [Connection.post(app, CHAT, body(stream=True)) for _ in range(200)]
    outcomes = [await first_piece(each) for each in streams]
    assert sorted(set(outcomes)) == ["miss", "shared"] and outcomes.count("miss") == 1
    go_on.set()
    for each in streams:
        assert b"second" in await each.body()
    assert len(provider.asked) == 1 and provider.num_ended == 1


async def test_a_leader_who_leaves_hands_over() -> None:
    provider, go_on = paused()
    app = app_of(provider)
    leader, follower = [Connection.post(app, CHAT, body(stream=True)) for _ in range(2)]
    await first_piece(leader)
    await first_piece(follower)
    leader.disconnect()
    await asyncio.wait_for(leader.task, 5)
    assert provider.num_ended == 0
    go_on.set()
    assert b"second" in await follower.body()
    assert len(provider.asked) == 1


async def test_the_generation_ends_with_the_last_reader() -> None:
    provider, _ = paused()
    app = app_of(provider)
    streams = [Connection.post(app, CHAT, body(stream=True)) for _ in range(3)]
    for each in streams:
        await first_piece(each)
        each.disconnect()
        await asyncio.wait_for(each.task, 5)
    assert (len(provider.asked), provider.num_ended) == (1, 1)
    async with http_client(app) as http:
        again = asyncio.create_task(outcome(http, body()))
        while len(provider.asked) < 2:
            await asyncio.sleep(0)
        again.cancel()


class _SlowToStart(FakeProvider):
    """Refuses its first calls, the first one after a while."""

    def __init__(self, num_refused: int = 1) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.num_refused = num_refused
        self.error: Exception = ValueError("no")

    async def chat(self, call: ModelCall[Any]) -> Any:  # noqa: ANN401
        if len(self.asked) < self.num_refused:
            self.asked.append(call)
            self.is_asked.set()
            await self.go_on.wait()
            raise self.error
        return await super().chat(call)


async def test_a_leader_that_fails_before_its_answer_hands_over() -> None:
    provider = _SlowToStart()
    app = app_of(provider)
    leader = Connection.post(app, CHAT, body())
    await asyncio.wait_for(provider.is_asked.wait(), 5)
    followers = [Connection.post(app, CHAT, body()) for _ in range(3)]
    await asyncio.sleep(0)
    provider.go_on.set()
    assert (await leader.head())[0] == 500
    outcomes = []
    for each in followers:
        status, headers = await each.head()
        outcomes.append(headers["x-penstock-cache"])
        assert status == 200
    assert sorted(outcomes)[0] in ("exact", "miss") and outcomes.count("miss") == 1
    assert len(provider.asked) == 2


@pytest.mark.parametrize("has_fallback", [False, True])
async def test_a_hang_of_the_model_is_waited_for_once(*, has_fallback: bool) -> None:
    provider = _SlowToStart(num_refused=1)
    provider.error = TimedOut("Too slow.", code="upstream_first_token_timeout")
    app = app_of(provider)
    leader = Connection.post(app, CHAT, body())
    await asyncio.wait_for(provider.is_asked.wait(), 5)
    asked = body(model="safe") if has_fallback else body()
    followers = [Connection.post(app, CHAT, asked) for _ in range(10)]
    for _ in range(20):
        await asyncio.sleep(0)
    provider.go_on.set()
    assert (await leader.head())[0] == 504
    expected = 200 if has_fallback else 504
    assert [(await each.head())[0] for each in followers] == [expected] * 10
    assert len(provider.asked) == (1 + 10 if has_fallback else 1)
    assert (await Connection.post(app, CHAT, body()).head())[0] == 200


async def test_followers_of_failing_leaders_do_not_wait_one_after_another() -> None:
    provider = _SlowToStart(num_refused=10)
    app = app_of(provider)
    requests = [Connection.post(app, CHAT, body()) for _ in range(10)]
    await asyncio.wait_for(provider.is_asked.wait(), 5)
    provider.go_on.set()
    assert [(await each.head())[0] for each in requests] == [500] * 10
    provider.go_on.clear()
    provider.asked.clear()
    requests = [Connection.post(app, CHAT, body()) for _ in range(10)]
    for failed in (1, 2):
        while len(provider.asked) < failed:
            await asyncio.sleep(0)
        provider.go_on.set()
        provider.go_on.clear()
    while len(provider.asked) < 10:  # after two failures all ask at once
        await asyncio.sleep(0)
    provider.go_on.set()
    assert [(await each.head())[0] for each in requests] == [500] * 10


async def test_followers_get_a_whole_answer_that_is_not_stored() -> None:
    provider = _Whole()
    app = app_of(provider)
    requests = [Connection.post(app, CHAT, body()) for _ in range(5)]
    await asyncio.wait_for(provider.is_asked.wait(), 5)
    await asyncio.sleep(0)
    provider.go_on.set()
    found = [(await each.head())[1]["x-penstock-cache"] for each in requests]
    assert sorted(found) == ["miss", *["shared"] * 4] and provider.num_asked == 1
    async with http_client(app) as http:
        page = (await http.get("/metrics")).text
    assert 'penstock_tokens_total{endpoint="chat",kind="output",model="ours"} 5.0' in page


class _Whole(FakeProvider):
    """Gives one body that was cut at its length, after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.num_asked = 0

    async def chat(self, call: ModelCall[Any]) -> Any:  # noqa: ANN401
        self.num_asked += 1
        self.is_asked.set()
        await self.go_on.wait()
        return Relayed(b"{}", Usage(completion_tokens=5), finish_reasons=["length"])


async def test_waiting_for_an_equal_request_is_no_overhead_of_the_gateway() -> None:
    provider = _Whole()
    app = app_of(provider)
    requests = [Connection.post(app, CHAT, body()) for _ in range(3)]
    await asyncio.wait_for(provider.is_asked.wait(), 5)
    await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.3)  # the wait that is measured
    provider.go_on.set()
    for each in requests:
        await each.head()
        await asyncio.wait_for(each.task, 5)
    async with http_client(app) as http:
        page = (await http.get("/metrics")).text
    (total,) = [
        float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("penstock_gateway_overhead_seconds_sum") and 'model="ours"' in line
    ]
    assert total < 0.3


async def test_metrics_count_outcomes_and_only_real_calls() -> None:
    async with http_client(app_of(FakeProvider())) as http:
        for _ in range(3):
            await http.post(CHAT, json=body())
        page = (await http.get("/metrics")).text
    lines = [line for line in page.splitlines() if 'model="ours"' in line]
    assert 'penstock_cache_requests_total{endpoint="chat",model="ours",outcome="exact"} 2.0' in lines
    assert 'penstock_cache_requests_total{endpoint="chat",model="ours",outcome="miss"} 1.0' in lines
    assert 'penstock_requests_total{endpoint="chat",model="ours",status="2xx"} 3.0' in lines
    assert 'penstock_tokens_total{endpoint="chat",kind="output",model="ours"} 3.0' in lines


async def test_a_lone_surrogate_is_left_to_the_provider() -> None:
    async with http_client(app_of(FakeProvider())) as http:
        raw = b'{"model": "ours", "messages": [{"role": "user", "content": "\\ud800"}]}'
        response = await http.post(CHAT, content=raw, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400)


async def test_a_stored_answer_that_cannot_be_read_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that replicas share can hold anything."""
    provider = FakeProvider()
    add = SemanticCache.add
    contents = [b"\xff garbage", b"", msgspec.msgpack.encode({"type": "relayed"})]

    def spoil(cache: SemanticCache, question: Any, vector: Any, answer: bytes, *rest: Any) -> bool:  # noqa: ANN401
        return add(cache, question, vector, contents.pop() if contents else answer, *rest)

    monkeypatch.setattr(SemanticCache, "add", spoil)
    async with http_client(app_of(provider)) as http:
        found = [await outcome(http, body()) for _ in range(8)]
    assert found[0] == found[1] == "miss" and found[-1] == "exact"
    assert len(provider.asked) == found.count("miss")
