"""Answers outlive the engine process that began them; the model is scripted, the sockets are real."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from backend.lora.info import AdapterInfo
from backend.server.engine_client import EngineClient
from backend.server.quote import PageIndex
from backend.server.wire import Rejected
from backend.tokenizer import Tokenizer
from backend.types import Request, StepOutput, TokenLogprobs
from gateway.errors import ServerError
from gateway.providers.base import Deaths, ModelCall
from gateway.providers.engine import resumption
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.resumption import Resumption
from gateway.providers.engine.service import EngineService
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from gateway.settings import Timeouts
from tests.gateway.conftest import MakeApp
from tests.gateway.connection import Connection, events
from tests.gateway.scripted_engine import ScriptedEngine, silent

CHAT = "/v1/chat/completions"
TEXT = "Naïve 水 wheels 🙂 turn, and turn."


def chat(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"model": "ours", "messages": [{"role": "user", "content": "Say it."}]} | more


class Mortal:
    """Says its text; in life i `lives[i]` new tokens, after which it waits to be killed."""

    def __init__(self, engine: ScriptedEngine, tokenizer: Tokenizer, lives: list[int]) -> None:
        self.engine = engine
        self.tokens = tokenizer.encode(TEXT)
        self._lives = lives
        self._life = 0
        self._num_stalled = 0
        self._stalled = asyncio.Event()
        engine.script = self

    async def __call__(self, request: Request) -> AsyncIterator[StepOutput]:
        begin, end = len(request.resume_token_ids), len(self.tokens)
        assert request.resume_token_ids == self.tokens[:begin]
        if self._life < len(self._lives):
            end = min(end, begin + self._lives[self._life])
        for position in range(begin, end):
            token = self.tokens[position]
            is_last = position + 1 == len(self.tokens)
            yield StepOutput(
                request_id="",
                token_ids=[token],
                logprobs=None if request.params.logprobs is None else [TokenLogprobs(token, -0.5, [])],
                finish_reason="stop" if is_last else None,
                num_cached_tokens=0 if begin else 3,
            )
        if end < len(self.tokens):
            self._num_stalled += 1
            self._stalled.set()
            async for output in silent(request):
                yield output

    async def die(self, num_streams: int = 1) -> None:
        """End this life once that number of sequences wait."""
        async with asyncio.timeout(10):
            while self._num_stalled < num_streams:
                self._stalled.clear()
                await self._stalled.wait()
        self._num_stalled = 0
        self._life += 1
        await self.engine.die()

    async def live(self, num_streams: int = 1) -> None:
        """One life after the other, to the last."""
        for _ in self._lives:
            await self.die(num_streams)
            await self.engine.start()


async def asked_while(
    http: httpx.AsyncClient, mortal: Mortal, num_streams: int = 1, **body: object
) -> dict[str, Any]:
    """The answer to a chat during which the engine lives and dies."""
    async with asyncio.timeout(20):
        response, _ = await asyncio.gather(http.post(CHAT, json=chat(**body)), mortal.live(num_streams))
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        found: dict[str, Any] = response.json()
        return found
    *chunks, end = events(response.content)
    assert end == "[DONE]", chunks[-1]
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    return {"text": "".join(deltas), "usage": chunks[-1].get("usage")}


@pytest.mark.parametrize("stream", [False, True])
async def test_at_every_cut_the_text_is_whole_and_counted_once(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    total = len(tokenizer.encode(TEXT))
    assert total >= 20
    for cut in range(total):
        engine.requests.clear()
        mortal = Mortal(engine, tokenizer, [cut])
        more = {"stream_options": {"include_usage": True}} if stream else {}
        answer = await asked_while(engine_http, mortal, stream=stream, **more)
        text = answer["text"] if stream else answer["choices"][0]["message"]["content"]
        assert text == TEXT
        first, second = engine.requests
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(first.prompt_token_ids) == len(second.prompt_token_ids)
        assert usage["completion_tokens"] == total
        assert usage["prompt_tokens_details"]["cached_tokens"] == 3
        assert first.params == second.params and first.params.seed is not None


async def test_a_seed_is_drawn_for_each_choice_and_none_where_nothing_is_drawn(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    await engine_http.post(CHAT, json=chat(n=3))
    seeds = {request.params.seed for request in engine.requests}
    assert len(seeds) == 3 and None not in seeds
    engine.requests.clear()
    await engine_http.post(CHAT, json=chat(temperature=0))
    await engine_http.post(CHAT, json=chat(seed=5))
    assert [request.params.seed for request in engine.requests] == [None, 5]


async def test_log_probabilities_and_stop_strings_meet_no_seam(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    body = {"stop": ["turn, and"], "logprobs": True, "temperature": 0}
    (calm,) = (await asked_while(engine_http, Mortal(engine, tokenizer, []), **body))["choices"]
    assert calm["message"]["content"] == TEXT[: TEXT.index("turn, and")] and calm["logprobs"]["content"]
    for cut in range(len(tokenizer.encode(TEXT[: TEXT.index("turn, and") + 8]))):
        answer = await asked_while(engine_http, Mortal(engine, tokenizer, [cut]), **body)
        assert answer["choices"] == [calm]


async def test_choices_go_on_each_by_itself_and_finished_ones_are_left_alone(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    mortal = Mortal(engine, tokenizer, [7])
    plain = mortal.__call__

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        if request.request_id.split("#")[0].endswith("/1"):
            yield StepOutput(request_id="", token_ids=tokenizer.encode("Done."), finish_reason="stop")
            return
        async for output in plain(request):
            yield output

    engine.script = script
    answer = await asked_while(engine_http, mortal, num_streams=2, n=3)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == [TEXT, "Done.", TEXT]
    again = [request.request_id.split("#")[0][-2:] for request in engine.requests[3:]]
    assert again in (["/0", "/2"], ["/0", "/1", "/2"])  # all: what was finished had not arrived
    assert answer["usage"]["prompt_tokens"] == len(engine.requests[0].prompt_token_ids)


async def test_a_request_that_runs_at_two_deaths_is_an_error_and_logged_by_its_id(
    engine_http: httpx.AsyncClient,
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mortal = Mortal(engine, tokenizer, [4, 5])
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(20):
            response, _ = await asyncio.gather(engine_http.post(CHAT, json=chat(stream=True)), mortal.live())
    *_, error = events(response.content)
    assert (error["error"]["code"], len(engine.requests)) == ("engine_error", 2)
    (record,) = [record for record in caplog.records if record.name == resumption.__name__]
    assert response.headers["x-request-id"] in record.getMessage()
    assert record.__dict__["fields"] == {"request_id": response.headers["x-request-id"]}  # in JSON lines
    assert TEXT[:3] not in caplog.text and "Say it" not in caplog.text


async def test_what_waits_is_sent_again_twice(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    for lives in ([0, 0], [6, 0], [0, 6]):
        engine.requests.clear()
        answer = await asked_while(engine_http, Mortal(engine, tokenizer, lives), stream=True)
        assert answer["text"] == TEXT and len(engine.requests) == 3
    engine.requests.clear()
    mortal = Mortal(engine, tokenizer, [0, 0, 0])
    async with asyncio.timeout(20):
        response, _ = await asyncio.gather(engine_http.post(CHAT, json=chat()), mortal.live())
    assert (response.status_code, len(engine.requests)) == (503, 3)
    assert "sock" not in response.text


async def test_for_a_client_that_has_left_nothing_is_sent(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    mortal = Mortal(engine, tokenizer, [5])
    connection = Connection.post(make_app(provider), CHAT, chat(stream=True))
    await connection.head()
    await connection.next()
    await mortal.die()
    connection.disconnect()
    await asyncio.wait_for(connection.task, 10)
    await engine.start()
    await provider.client.wait_ready(10)
    assert len(engine.requests) == 1


async def test_a_deadline_holds_while_the_engine_is_away(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    mortal = Mortal(engine, tokenizer, [5])
    app = make_app(provider, timeouts=Timeouts(idle_s=0.3))
    connection = Connection.post(app, CHAT, chat(stream=True))
    await connection.head()
    await mortal.die()
    *_, error = events(await asyncio.wait_for(connection.body(), 10))
    assert error["error"]["code"] == "timeout"


async def test_a_full_queue_of_the_restarted_engine_is_waited_for(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    mortal = Mortal(engine, tokenizer, [5])
    asking = asyncio.create_task(engine_http.post(CHAT, json=chat()))
    await mortal.die()
    engine.rejection = Rejected("", "queue_full", "The queue is full.", 0.01)
    await engine.start()
    async with asyncio.timeout(10):
        while len(engine.requests) < 4:
            await asyncio.sleep(0.01)
    engine.rejection = None
    response = await asyncio.wait_for(asking, 10)
    assert response.json()["choices"][0]["message"]["content"] == TEXT


async def test_other_weights_do_not_go_on_with_a_text(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    mortal = Mortal(engine, tokenizer, [5])
    asking = asyncio.create_task(engine_http.post(CHAT, json=chat(stream=True)))
    await mortal.die()
    engine.hello = msgspec.structs.replace(engine.hello, revision="other")
    await engine.start()
    *_, error = events((await asyncio.wait_for(asking, 10)).content)
    assert "replaced" in error["error"]["message"] and len(engine.requests) == 1


@pytest.mark.parametrize("digest", ["same", "other"])
async def test_an_adapter_is_the_same_or_the_answer_ends(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tokenizer: Tokenizer, digest: str
) -> None:
    engine.adapters["a"] = AdapterInfo("a", "same", "scripted", 8, 1000, "/a")
    await engine.die()
    await engine.start()
    async with asyncio.timeout(10):
        while not (provider.client.ready and provider.client.adapters):
            await provider.client.wait_message()
    mortal = Mortal(engine, tokenizer, [5])
    asked = provider.with_adapter("a", "ours")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(make_app(asked)), base_url="http://gateway"
    ) as http:
        asking = asyncio.create_task(http.post(CHAT, json=chat(stream=True)))
        await mortal.die()
        engine.adapters["a"] = AdapterInfo("a", digest, "scripted", 8, 1000, "/a")
        await engine.start()
        found = events((await asyncio.wait_for(asking, 10)).content)
    assert [request.adapter for request in engine.requests] == ["same"] * (2 if digest == "same" else 1)
    assert found[-1] == "[DONE]" if digest == "same" else "replaced" in found[-1]["error"]["message"]


@pytest.mark.parametrize("difference", [{}, {"revision": "other"}, {"dtype": "bfloat16"}])
async def test_another_engine_goes_on_if_its_weights_are_the_same(
    make_app: MakeApp,
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    difference: dict[str, Any],
) -> None:
    monkeypatch.setattr(resumption, "WAIT_S", 0.1)
    mortal = Mortal(engine, tokenizer, [5])
    spare = ScriptedEngine(tmp_path / "spare.sock", mortal, vocab_size=tokenizer.vocab_size)
    spare.hello = msgspec.structs.replace(engine.hello, model="spare", max_queue=7, **difference)
    engine.adapters["a"] = AdapterInfo("a", "digest", "scripted", 8, 1000, "/a")
    spare.adapters["b"] = AdapterInfo("b", "digest", "scripted", 8, 1000, "/b")
    await spare.start()
    clients = [EngineClient(each.path) for each in (engine, spare)]
    for client in clients:
        await client.start()
        await client.wait_ready(10)
    first = EngineProvider(EngineService(Replicas(clients[:1]), tokenizer, peers=clients), "ours")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(make_app(first.with_adapter("a", "ours"))), base_url="http://gateway"
    ) as http:
        asking = asyncio.create_task(http.post(CHAT, json=chat(stream=True)))
        await mortal.die()
        *chunks, end = events((await asyncio.wait_for(asking, 10)).content)
    (begun,) = engine.requests
    if difference:
        assert end["error"]["code"] == "model_unavailable" and not spare.requests
    else:
        (again,) = spare.requests
        assert (again.adapter, again.adapter_name) == ("digest", "b") and again.params == begun.params
        texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
        assert "".join(texts) == TEXT and end == "[DONE]"
    for client in clients:
        await client.close()
    await spare.die()


class Three:
    """Three replicas that say their text, but for a chat that asks for poison: each that runs it dies."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, say: str) -> None:
        self.going_on = asyncio.Event()  # until then ordinary answers stop half-way
        self.num_begun = 0
        self.num_deaths = 0
        self._tokenizer = tokenizer
        self._tokens = tokenizer.encode(say)
        self.engines = [
            ScriptedEngine(folder / f"{number}.sock", silent, vocab_size=tokenizer.vocab_size)
            for number in range(3)
        ]
        for engine in self.engines:
            engine.script = partial(self._play, engine)

    async def _play(self, engine: ScriptedEngine, request: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(request_id="")  # it has begun
        if "poison" in self._tokenizer.decode(request.prompt_token_ids):
            self.num_deaths += 1
            self._dying = asyncio.create_task(engine.die())
            await asyncio.Event().wait()
        for position in range(len(request.resume_token_ids), len(self._tokens)):
            is_last = position + 1 == len(self._tokens)
            token = self._tokens[position]
            yield StepOutput(
                request_id="", token_ids=[token], finish_reason="stop" if is_last else None
            )  # fmt: skip
            if position == 4:
                self.num_begun += 1
                await self.going_on.wait()

    async def start(self) -> list[EngineClient]:
        index = PageIndex()
        clients = []
        for engine in self.engines:
            await engine.start()
            client = EngineClient(engine.path, index.add_replica())
            await client.start()
            await client.wait_ready(10)
            clients.append(client)
        return clients


async def test_a_request_that_kills_two_replicas_is_not_given_to_the_third_and_others_go_on(
    make_app: MakeApp, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    three = Three(tmp_path, tokenizer, TEXT)
    clients = await three.start()
    provider = EngineProvider(EngineService(Replicas(clients), tokenizer, peers=clients), "ours")
    poison = chat() | {"messages": [{"role": "user", "content": "poison"}]}
    async with (
        httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(provider)), base_url="http://gateway"
        ) as http,
        asyncio.timeout(20),
    ):
        others = [asyncio.create_task(http.post(CHAT, json=chat())) for _ in range(3)]
        while three.num_begun < 3:
            await asyncio.sleep(0.01)
        assert [client.num_streams for client in clients] == [1, 1, 1]
        refused = await http.post(CHAT, json=poison)
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "engine_error")
        assert three.num_deaths == 2 and sum(client.ready for client in clients) == 1
        three.going_on.set()
        for other in await asyncio.gather(*others):
            assert other.json()["choices"][0]["message"]["content"] == TEXT
    for client in clients:
        await client.close()
    for engine in three.engines:
        await engine.die()


async def test_deaths_and_hangs_with_other_models_count(
    provider: EngineProvider, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """A fallback is a model with an engine of its own: it is no third one for this request."""
    model, deaths = provider.model, Deaths()
    other = Resumption(deaths)
    other.note_hang(0.1, "r")
    other.check("ours")
    other.note_hang(3.0, "r")
    assert await other.next_engine(model, ()) == model
    assert "request r leaves an engine that is silent for 3.0 s" in caplog.text
    Resumption(deaths).note_death(model, "r", was_running=False)
    with pytest.raises(ServerError):
        Resumption(deaths).note_death(model, "r", was_running=True)
    with pytest.raises(ServerError):
        Resumption(deaths).check("another")
    Resumption(Deaths()).check("ours")


async def test_a_call_that_ends_while_its_engine_hangs_counts_as_a_death(
    provider: EngineProvider, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(request: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(request_id="")
        async for output in silent(request):
            yield output

    engine.script, found = hang, Deaths()
    call = ModelCall(typed(chat(), ChatRequest), chat(), "r", deaths=found)
    for limit_s, num in ((60.0, 0), (0.0, 1)):
        monkeypatch.setattr(resumption, "SILENT_AFTER_S", limit_s)
        answer = await provider.chat(call)
        reading = asyncio.ensure_future(anext(aiter(answer.deltas)))
        async with asyncio.timeout(10):
            while not any(stream.has_begun for stream in provider.client._streams.values()):
                await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert found.num == num
