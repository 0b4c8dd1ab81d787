"""Our engine as a provider, from HTTP to the engine's socket; only the model is scripted."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import pytest

from backend.lora.info import AdapterInfo
from backend.server.engine_client import EngineClient
from backend.server.wire import Rejected
from backend.tokenizer import Tokenizer
from backend.types import Request, StepOutput, TokenLogprobs
from gateway.auth import KeyRing
from gateway.providers.engine import resumption, service
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from tests.backend.tokenizer.checkpoints import save_byte_level
from tests.gateway.conftest import REPLY, MakeApp, http_client
from tests.gateway.connection import Connection, events
from tests.gateway.scripted_engine import ScriptedEngine, says, silent

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

T = TypeVar("T")


def chat(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"model": "ours", "messages": [{"role": "user", "content": "Say it."}]} | more


def completion(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"model": "ours", "prompt": "Say it.", "max_tokens": 64} | more


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def refused(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    response = await client.post(path, json=body)
    return response.status_code, response.json()["error"]


async def test_a_chat_is_templated_tokenised_and_answered(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    answer = await ask(engine_http, CHAT, chat())
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": REPLY, "refusal": None, "annotations": []}
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    prompt = engine.requests[0].prompt_token_ids
    text = "<|im_start|>user\nSay it.<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(prompt, skip_special_tokens=False) == text
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == len(tokenizer.encode(REPLY))
    assert re.fullmatch("fp_[0-9a-f]{12}", answer["system_fingerprint"])


async def test_the_context_limits_an_answer_without_limit(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    await ask(engine_http, CHAT, chat())
    await ask(engine_http, CHAT, chat(max_tokens=5))
    await ask(engine_http, CHAT, chat(max_completion_tokens=6))
    limits = [request.params.max_tokens for request in engine.requests]
    assert limits == [256 - len(engine.requests[0].prompt_token_ids), 5, 6]


async def test_a_final_message_is_continued(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    messages = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "The water"}]
    await ask(engine_http, CHAT, chat(messages=messages, continue_final_message=True))
    assert tokenizer.decode(engine.requests[0].prompt_token_ids).endswith("The water")


async def test_an_answer_is_shown_without_its_tags(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking %}{# <think></think><answer></answer> #}think{% endif %}"
    )
    own = Tokenizer.from_checkpoint(save_byte_level(tmp_path, chat_template=template))
    service = EngineService(Replicas([provider.client]), own)
    messages = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "The water"}]
    found = []
    async with http_client(make_app(EngineProvider(service, "ours"))) as http:
        for said, more in (
            ("<think>\nI say it.\n</think>\n<answer>\n5\n</answer>", {"reasoning_effort": "high"}),
            ("<answer>\n5\n</answer>", {}),
            ("\n<answer>5", {"messages": messages, "continue_final_message": True}),
        ):
            engine.script = says(own.encode(said))
            message = (await ask(http, CHAT, chat(**more)))["choices"][0]["message"]
            found.append((message.get("reasoning_content"), message["content"]))
    assert found == [("I say it.", "5"), (None, "5"), (None, "\n<answer>5")]


async def test_choices_are_kept_apart(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    words = [tokenizer.encode(f"word {i} of many") for i in range(3)]

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        async for output in says(words[request.params.seed or 0])(request):
            yield output

    engine.script = script
    answer = await ask(engine_http, CHAT, chat(n=3, seed=0))
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == ["word 0 of many", "word 1 of many", "word 2 of many"]
    assert answer["usage"]["completion_tokens"] == sum(map(len, words))
    assert answer["usage"]["prompt_tokens"] == len(engine.requests[0].prompt_token_ids)


async def test_several_prompts_in_one_completion(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    answer = await ask(engine_http, COMPLETIONS, completion(prompt=["a", "b c"], n=2, echo=True))
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["a" + REPLY] * 2 + ["b c" + REPLY] * 2
    lengths = [len(tokenizer.encode(text)) for text in ("a", "b c")]
    assert answer["usage"]["prompt_tokens"] == sum(lengths)


async def test_token_ids_as_a_prompt(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("The pipe")
    answer = await ask(engine_http, COMPLETIONS, completion(prompt=ids, echo=True))
    assert engine.requests[0].prompt_token_ids == ids
    assert answer["choices"][0]["text"] == "The pipe" + REPLY
    status, error = await refused(engine_http, COMPLETIONS, completion(prompt=[[1], [99999]]))
    assert (status, error["param"]) == (400, "prompt")


async def test_a_stop_string_ends_the_answer_and_cancels_the_rest(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    async def endless(request: Request) -> AsyncIterator[StepOutput]:
        while True:
            for token_id in tokenizer.encode(REPLY):
                yield StepOutput(request_id="", token_ids=[token_id])
                await asyncio.sleep(0.001)

    engine.script = endless
    answer = await ask(engine_http, CHAT, chat(stop=["the wheel", "never"]))
    assert answer["choices"][0]["message"]["content"] == "The water turns "
    assert answer["choices"][0]["finish_reason"] == "stop"
    await asyncio.wait_for(engine.cancellation.wait(), 5)


def with_logprobs(tokenizer: Tokenizer) -> Any:  # noqa: ANN401
    def records(ids: list[int]) -> list[TokenLogprobs]:
        return [TokenLogprobs(i, -0.25, [(i, -0.25), (5, float("-inf"))]) for i in ids]

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        ids = tokenizer.encode(REPLY)[: request.params.max_tokens]
        asked = request.params.prompt_logprobs is not None
        prompt = [None, *records(request.prompt_token_ids[1:])] if asked else None
        yield StepOutput(
            request_id="",
            token_ids=ids,
            logprobs=records(ids),
            prompt_logprobs=prompt,  # type: ignore[arg-type]
            finish_reason="stop",
        )

    return script


async def test_chat_logprobs(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = with_logprobs(tokenizer)
    answer = await ask(engine_http, CHAT, chat(logprobs=True, top_logprobs=2))
    assert engine.requests[0].params.logprobs == 2
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    assert b"".join(bytes(each["bytes"]) for each in logprobs["content"]) == REPLY.encode()
    first = logprobs["content"][0]
    assert first["token"] == tokenizer.token_text(tokenizer.encode(REPLY)[0])
    assert [each["logprob"] for each in first["top_logprobs"]] == [-0.25, -9999.0]


async def test_a_prompt_can_be_scored_without_an_answer(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = with_logprobs(tokenizer)
    answer = await ask(engine_http, COMPLETIONS, completion(echo=True, logprobs=1, max_tokens=0))
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Say it.", "length")
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == "Say it."
    assert logprobs["token_logprobs"][0] is None and set(logprobs["token_logprobs"][1:]) == {-0.25}
    assert logprobs["top_logprobs"][0] is None
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [sum(lengths[:i]) for i in range(len(lengths))]
    assert answer["usage"]["completion_tokens"] == 0


async def test_a_prompt_that_fills_the_context_can_be_scored(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = with_logprobs(tokenizer)
    await ask(engine_http, COMPLETIONS, completion(prompt=[5] * 256, echo=True, logprobs=1, max_tokens=0))
    assert engine.requests[0].params.max_tokens == 0, "the engine needs no room for an answer"
    status, error = await refused(engine_http, COMPLETIONS, completion(prompt=[5] * 257, max_tokens=0))
    assert (status, error["code"]) == (400, "context_length_exceeded")


async def test_echo_and_answer_share_their_offsets(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.script = with_logprobs(tokenizer)
    answer = await ask(engine_http, COMPLETIONS, completion(echo=True, logprobs=0))
    logprobs = answer["choices"][0]["logprobs"]
    text = answer["choices"][0]["text"]
    assert "".join(logprobs["tokens"]) == text == "Say it." + REPLY
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[offset:].startswith(token)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat(messages=[{"role": "user", "content": "word " * 300}]), "messages"),
        (CHAT, chat(max_tokens=250), "messages"),
        (COMPLETIONS, completion(max_tokens=256), "prompt"),
    ],
)
async def test_a_prompt_beyond_the_context_is_refused(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, path: str, body: dict[str, Any], param: str
) -> None:
    status, error = await refused(engine_http, path, body)
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert engine.requests == []


async def test_an_empty_prompt_is_refused(engine_http: httpx.AsyncClient) -> None:
    status, error = await refused(engine_http, COMPLETIONS, completion(prompt=""))
    assert (status, error["param"]) == (400, "prompt")


async def test_our_engine_has_no_embeddings(engine_http: httpx.AsyncClient) -> None:
    status, error = await refused(engine_http, "/v1/embeddings", {"model": "ours", "input": "x"})
    assert (status, error["code"]) == (400, "model_not_supported")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_a_429_with_retry_after(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, stream: bool
) -> None:
    engine.rejection = Rejected("", "queue_full", "The queue is full.", 3.0)
    response = await engine_http.post(CHAT, json=chat(stream=stream))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


async def test_a_request_that_the_engine_refuses_is_a_400(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.rejection = Rejected("", "prompt_too_long", "Too long for the KV memory.", param="messages")
    status, error = await refused(engine_http, CHAT, chat(stream=True))
    assert (status, error["code"]) == (400, "context_length_exceeded")


async def test_without_an_engine_it_is_a_503(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, provider: EngineProvider
) -> None:
    await engine.die()
    while provider.client.hello is not None:
        await asyncio.sleep(0.01)
    response = await engine_http.post(CHAT, json=chat())
    assert response.status_code == 503 and response.headers["retry-after"]
    assert "sock" not in response.text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat(n=5), "n"),
        (COMPLETIONS, completion(prompt=["a"] * 3, n=2), "n"),
        (COMPLETIONS, completion(prompt=["a"] * 5), "prompt"),
    ],
)
async def test_more_sequences_than_the_queue_holds_are_a_400(
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    make_app: MakeApp,
    path: str,
    body: dict[str, Any],
    param: str,
) -> None:
    engine.hello = msgspec.structs.replace(engine.hello, max_queue=4)
    client = EngineClient(engine.path)
    await client.start()
    await client.wait_ready(5)
    async with http_client(
        make_app(EngineProvider(EngineService(Replicas([client]), tokenizer), "ours"))
    ) as http:
        status, error = await refused(http, path, body)
    await client.close()
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert "more than the 4" in error["message"] and not engine.requests


async def test_long_messages_wait_for_the_context_length_before_they_are_tokenised(
    engine: ScriptedEngine, tokenizer: Tokenizer, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode_chat", None)
    service_ = EngineService(Replicas([EngineClient(engine.path)]), tokenizer, start_wait_s=0.05)
    async with http_client(make_app(EngineProvider(service_, "ours"))) as http:
        body = chat(messages=[{"role": "user", "content": "x " * 1_000_000}])
        status, error = await refused(http, CHAT, body)
    assert (status, error["code"]) == (503, "model_unavailable")


async def test_a_request_waits_for_an_engine_that_is_starting(
    make_app: MakeApp, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    client = EngineClient(engine.path)
    app = make_app(EngineProvider(EngineService(Replicas([client]), tokenizer, start_wait_s=5.0), "ours"))
    async with http_client(app) as http:
        asking = asyncio.create_task(http.post(CHAT, json=chat()))
        await asyncio.sleep(0)  # the request is sent before anything connects
        await client.start()
        assert (await asking).status_code == 200
    await client.close()


async def test_waiting_for_an_engine_times_out(
    make_app: MakeApp, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    app = make_app(
        EngineProvider(
            EngineService(Replicas([EngineClient(engine.path)]), tokenizer, start_wait_s=0.05), "ours"
        )
    )
    async with http_client(app) as http:
        assert (await http.post(CHAT, json=chat())).status_code == 503


async def test_waiting_requests_are_bounded_over_all_adapters(
    make_app: MakeApp, engine: ScriptedEngine, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request for an adapter gets its own provider; the bound must be per engine."""
    monkeypatch.setattr(service, "MAX_WAITING_REQUESTS", 2)
    client = EngineClient(engine.path)
    client.adapters = {name: AdapterInfo(name, f"<{name}>", "ours", 8, 1, "/p") for name in "abc"}
    base = EngineProvider(EngineService(Replicas([client]), tokenizer, start_wait_s=30.0), "ours")
    async with http_client(make_app(base)) as http:
        waiting = [asyncio.create_task(http.post(CHAT, json=chat(model=name))) for name in ("ours", "ours:a")]
        async with asyncio.timeout(5):
            while base.service.num_waiting < 2:
                await asyncio.sleep(0)
        for name in ("ours:b", "ours:c", "ours"):
            response = await asyncio.wait_for(http.post(CHAT, json=chat(model=name)), 5)
            assert response.status_code == 503 and response.headers["retry-after"]
        for task in waiting:
            task.cancel()


async def started(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tokenizer: Tokenizer, **body: object
) -> Connection:
    """A stream that pauses after its first words."""

    async def stalls(request: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(request_id="", token_ids=tokenizer.encode("The water"))
        async for output in silent(request):
            yield output

    engine.script = stalls
    connection = Connection.post(make_app(provider), CHAT, chat(stream=True, **body))
    assert (await connection.head())[0] == 200
    assert b"The water" in (await connection.next())["body"]
    return connection


async def test_an_engine_that_does_not_come_back_ends_the_stream_with_an_error(
    make_app: MakeApp,
    provider: EngineProvider,
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resumption, "WAIT_S", 0.05)
    connection = await started(make_app, provider, engine, tokenizer)
    await engine.die()
    (error,) = events(await connection.body())
    assert error["error"]["code"] == "model_unavailable"


async def test_an_engine_error_has_its_reason(engine_http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    async def fails(request: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(request_id="", finish_reason="error", error="The numbers were not finite.")

    engine.script = fails
    status, error = await refused(engine_http, CHAT, chat())
    assert (status, error["message"], error["code"]) == (500, "The numbers were not finite.", "engine_error")


async def test_an_engine_error_that_may_pass_is_a_503(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    async def fails(request: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(request_id="", finish_reason="error", error="Not now.", retry_after_s=2.0)

    engine.script = fails
    response = await engine_http.post(CHAT, json=chat())
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert response.json()["error"]["message"] == "Not now."


@pytest.mark.parametrize("is_queue_full", [True, False])
async def test_a_request_that_an_engine_has_no_room_for_costs_nothing(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, *, is_queue_full: bool
) -> None:
    async def fails(request: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(request_id="", finish_reason="error", error="Not now.", retry_after_s=2.0)

    engine.script = fails
    if is_queue_full:
        engine.rejection = Rejected("", "queue_full", "It is full.", 1.0)
    response = await engine_http.post(CHAT, json=chat())
    assert response.status_code == (429 if is_queue_full else 503)
    assert "penstock_tokens_total{" not in (await engine_http.get("/metrics")).text
    engine.rejection, engine.script = None, says([5, 6])
    assert (await engine_http.post(CHAT, json=chat())).status_code == 200
    assert "penstock_tokens_total{" in (await engine_http.get("/metrics")).text


@pytest.mark.parametrize("n", [1, 4])
async def test_a_disconnect_cancels_every_choice(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, tokenizer: Tokenizer, n: int
) -> None:
    connection = await started(make_app, provider, engine, tokenizer, n=n)
    connection.disconnect()
    await asyncio.wait_for(connection.task, 5)
    while len(engine.cancelled) < n:
        engine.cancellation.clear()
        await asyncio.wait_for(engine.cancellation.wait(), 5)
    assert set(engine.cancelled) == {request.request_id for request in engine.requests}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_before_the_first_token_cancels(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script = silent
    connection = Connection.post(make_app(provider), CHAT, chat(stream=stream))
    while not engine.requests:
        await asyncio.sleep(0.001)
    connection.disconnect()
    await asyncio.wait_for(connection.task, 5)
    await asyncio.wait_for(engine.cancellation.wait(), 5)


async def test_tenants_have_their_own_salts(
    make_app: MakeApp, provider: EngineProvider, engine: ScriptedEngine
) -> None:
    app = make_app(provider, api_keys=("sk-a", "sk-b"))
    for key in ("sk-a", "sk-b"):
        connection = Connection.post(app, CHAT, chat(), authorization=f"Bearer {key}")
        assert (await connection.head())[0] == 200
        await connection.body()
    expected = [KeyRing(["sk-a", "sk-b"]).identify(f"Bearer {key}").tenant_salt for key in ("sk-a", "sk-b")]
    assert [request.tenant_salt for request in engine.requests] == expected


async def test_too_many_sequences_are_refused(engine_http: httpx.AsyncClient) -> None:
    status, error = await refused(engine_http, COMPLETIONS, completion(prompt=["a"] * 100, n=11))
    assert (status, error["param"]) == (400, "n")


MANY = [{"role": "user", "content": [{"type": "text", "text": "word " * 5}]}] * 4_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(messages=MANY)),
        (COMPLETIONS, completion(prompt=["word " * 40] * 500 + ["word " * 1000])),  # the last is refused
    ],
)
async def test_long_texts_are_not_tokenised_in_the_event_loop(
    engine_http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    threads: set[int] = set()
    for method in (Tokenizer.encode, Tokenizer.render_chat):
        monkeypatch.setattr(Tokenizer, method.__name__, noting_thread(method, threads))
    status, error = await refused(engine_http, path, body)
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert threads and threading.get_ident() not in threads


async def test_one_long_text_does_not_block_the_event_loop(
    provider: EngineProvider, tokenizer: Tokenizer
) -> None:
    text = "word " * 100_000
    (found,), turns = await counting_turns(provider.service.prompts.encode_prompts([text]))
    assert found == tokenizer.encode(text)
    assert turns > 10, "the tokeniser holds the interpreter's lock"


def noting_thread(function: Callable[..., Any], threads: set[int]) -> Callable[..., Any]:
    def noting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        threads.add(threading.get_ident())
        return function(*args, **kwargs)

    return noting


async def counting_turns(work: Awaitable[T]) -> tuple[T, int]:
    """The result of `work`, and how often the event loop ran in the meantime."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    result = await work
    counter.cancel()
    return result, turns


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_huge_text_is_refused_without_being_tokenised(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, path: str
) -> None:
    text = "x " * 4_000_000
    messages = [{"role": "user", "content": text}]
    body = completion(prompt=text) if path == COMPLETIONS else chat(messages=messages)
    status, error = await refused(engine_http, path, body)
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == ("prompt" if path == COMPLETIONS else "messages")
    assert not engine.requests


async def test_token_ids_are_limited_by_the_context_alone(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    status, error = await refused(engine_http, COMPLETIONS, completion(prompt=[5] * 3000))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    status, error = await refused(engine_http, COMPLETIONS, completion(prompt=["a"] * 2049))
    assert (status, error["param"]) == (400, "prompt")
    assert not engine.requests
