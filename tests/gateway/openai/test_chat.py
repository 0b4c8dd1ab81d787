"""The official OpenAI client against a real server on a real port, with scripted models."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import uvicorn
from openai import AsyncOpenAI

from gateway.answer import Delta
from gateway.providers.fake import FakeProvider, TextCall
from tests.gateway.conftest import MakeApp

MESSAGES = [{"role": "user", "content": "hi"}]
KEY = "sk-test"


async def stalling(call: TextCall) -> AsyncIterator[Delta]:
    if call.body.get("reasoning_effort"):
        yield Delta(0, reasoning="They ")
        yield Delta(0, reasoning="greet.")
    yield Delta(0, "Hello")
    if call.body.get("user") == "stall":
        await asyncio.get_running_loop().create_future()
    yield Delta(0, "!", finish_reason="stop")


@pytest.fixture
def fake() -> FakeProvider:
    return FakeProvider(stalling)


@pytest.fixture
async def client(make_app: MakeApp) -> AsyncIterator[AsyncOpenAI]:
    app = make_app(api_keys=(KEY,))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app, interface="asgi3", log_level="warning", lifespan="on", timeout_graceful_shutdown=3
        )
    )
    running = asyncio.create_task(server.serve(sockets=[listener]))
    base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    async with AsyncOpenAI(api_key=KEY, base_url=base_url, max_retries=0) as client:
        with contextlib.suppress(openai.APIConnectionError):
            await client.models.list()
        yield client
    server.should_exit = True
    await running


async def test_whole(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="ours", messages=MESSAGES)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "Hello!"
    assert answer.usage is not None and answer.usage.completion_tokens == 2
    completion = await client.completions.create(model="ours", prompt="hi")
    assert completion.choices[0].text == "Hello!"
    embedding = await client.embeddings.create(model="ours", input=["a", "bc"])  # asks for base64
    assert embedding.data[1].embedding == [1.0, 2.0, 1.0]
    assert [model.id async for model in client.models.list()] == ["ours", "theirs", "auto"]
    assert (await client.models.retrieve("theirs")).owned_by == "upstream"


async def test_streams(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="auto",
        messages=MESSAGES,  # type: ignore[arg-type]
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "Hello!"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 9


async def test_the_sdks_own_accumulation(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="ours", messages=MESSAGES) as stream:  # type: ignore[arg-type]
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello!"


async def test_reasoning_as_clients_of_deepseek_and_vllm_read_it(client: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "ours", "messages": MESSAGES, "reasoning_effort": "low"}
    answer = await client.chat.completions.create(**asked)
    message: Any = answer.choices[0].message
    assert (message.reasoning_content, message.reasoning) == ("They greet.", "They greet.")
    assert message.content == "Hello!"
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2

    reasoning = content = vllm_reasoning = ""
    async for chunk in await client.chat.completions.create(stream=True, **asked):
        delta: Any = chunk.choices[0].delta
        if delta.reasoning_content:  # read unconditionally
            reasoning += delta.reasoning_content
        else:
            content += delta.content
        if hasattr(delta, "reasoning"):
            vllm_reasoning += delta.reasoning
    assert (reasoning, content, vllm_reasoning) == ("They greet.", "Hello!", "They greet.")

    again = [*MESSAGES, message.model_dump(), *MESSAGES]
    assert (await client.chat.completions.create(model="ours", messages=again)).choices  # type: ignore[arg-type]


async def test_errors_are_the_sdks_own_classes(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="nobody", messages=MESSAGES)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="ours", messages=MESSAGES, temperature=3)  # type: ignore[arg-type]
    assert refused.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="sk-wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        await client.images.generate(model="ours", prompt="hi")


async def test_closing_a_stream_ends_the_generation(client: AsyncOpenAI, fake: FakeProvider) -> None:
    stream = await client.chat.completions.create(
        model="ours",
        messages=MESSAGES,  # type: ignore[arg-type]
        stream=True,
        user="stall",
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert fake.num_ended == 0
    await stream.close()
    async with asyncio.timeout(5):
        while fake.num_ended == 0:
            await asyncio.sleep(0.01)
