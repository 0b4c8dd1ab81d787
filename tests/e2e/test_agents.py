"""Agent frameworks with only their base_url changed: each uses a tool, over every API that it speaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import agents
import anthropic
import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.e2e.server import Server

THINKER = "pico-large"
QUESTION = "What is 417 + 256?"
EXPRESSION = "417 + 256"
# Greedy: a model that samples asks twice now and then, which says nothing about the gateway.
TEMPERATURE = 0.0
streamed = pytest.mark.parametrize("is_streamed", [False, True])


class Calculator:
    """The tool; `asked` has the calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, expression: str) -> str:
        self.asked.append(expression)
        return "673"


@streamed
@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_openais_agents_sdk(server: Server, kind: str, is_streamed: bool) -> None:
    calculate = Calculator()

    @agents.function_tool
    def calculator(expression: str) -> str:
        """Compute an expression."""
        return calculate(expression)

    async def run() -> agents.result.RunResultBase:
        agents.set_tracing_disabled(True)
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key=server.api_key) as client:
            model: agents.Model = agents.OpenAIResponsesModel(THINKER, client)
            if kind == "chat":
                model = agents.OpenAIChatCompletionsModel(THINKER, client)
            settings = agents.ModelSettings(temperature=TEMPERATURE)
            agent = agents.Agent("helper", tools=[calculator], model=model, model_settings=settings)
            if not is_streamed:
                return await agents.Runner.run(agent, QUESTION, max_turns=4)
            result = agents.Runner.run_streamed(agent, QUESTION, max_turns=4)
            async for _ in result.stream_events():
                pass
            return result

    result = asyncio.run(run())
    assert calculate.asked == [EXPRESSION] and "673" in str(result.final_output)


def test_openais_agents_sdk_keeps_a_session_in_a_conversation(server: Server) -> None:
    async def run() -> tuple[str, list[Any]]:
        agents.set_tracing_disabled(True)
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key=server.api_key) as client:
            agent = agents.Agent("helper", model=agents.OpenAIResponsesModel(THINKER, client))
            session = agents.OpenAIConversationsSession(openai_client=client)
            await agents.Runner.run(agent, "What is 17 + 25?", session=session)
            await agents.Runner.run(agent, "What is 1 + 1?", session=session)
            return await session._get_session_id(), await session.get_items()

    conversation_id, items = asyncio.run(run())
    roles = [item.get("role") for item in items if item.get("type") == "message"]
    assert conversation_id.startswith("conv_") and roles == ["user", "assistant"] * 2


@contextlib.asynccontextmanager
async def pydantic_model(server: Server, kind: str) -> AsyncIterator[Model]:
    if kind == "messages":
        async with anthropic.AsyncAnthropic(base_url=server.root_url, api_key=server.api_key) as claude:
            yield AnthropicModel(THINKER, provider=AnthropicProvider(anthropic_client=claude))
        return
    kinds: dict[str, Any] = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key=server.api_key) as client:
        yield kinds[kind](THINKER, provider=OpenAIProvider(openai_client=client))


class Sum(BaseModel):
    sum: int


@streamed
@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_pydantic_ai(server: Server, kind: str, is_streamed: bool) -> None:
    calculate = Calculator()

    def calculator(expression: str) -> str:
        """Compute an expression."""
        return calculate(expression)

    async def run() -> str:
        async with pydantic_model(server, kind) as model:
            agent = Agent(model, tools=[calculator], model_settings={"temperature": TEMPERATURE})
            if not is_streamed:
                return (await agent.run(QUESTION)).output
            async with agent.run_stream(QUESTION) as result:
                return "".join([piece async for piece in result.stream_text(delta=True)])

    assert "673" in asyncio.run(run()) and calculate.asked == [EXPRESSION]


def langchain_model(server: Server, kind: str) -> BaseChatModel:
    if kind == "messages":
        fields: dict[str, Any] = {"model_name": THINKER, "base_url": server.root_url}
        fields["temperature"] = TEMPERATURE
        return ChatAnthropic(**fields, api_key=server.api_key, max_tokens_to_sample=400)
    fields = {"model": THINKER, "base_url": server.base_url, "use_responses_api": kind == "responses"}
    fields["temperature"] = TEMPERATURE
    return ChatOpenAI(**fields, api_key=server.api_key, stream_usage=True)


@streamed
@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_langchain(server: Server, kind: str, is_streamed: bool) -> None:
    calculate = Calculator()

    @tool
    def calculator(expression: str) -> str:
        """Compute an expression."""
        return calculate(expression)

    model = langchain_model(server, kind).bind_tools([calculator])

    def ask(messages: list[Any]) -> AIMessage:
        if not is_streamed:
            return model.invoke(messages)
        first, *rest = model.stream(messages)
        assert isinstance(first, AIMessageChunk)
        whole = first
        for chunk in rest:
            assert isinstance(chunk, AIMessageChunk)
            whole += chunk
        return whole

    messages: list[Any] = [HumanMessage(QUESTION)]
    called = ask(messages)
    messages += [called, *(calculator.invoke(call) for call in called.tool_calls)]
    answer = ask(messages)
    assert calculate.asked == [EXPRESSION] and "673" in answer.text
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_structured_output_of_langchain(server: Server, kind: str) -> None:
    model = langchain_model(server, kind).with_structured_output(Sum, method="json_schema")
    assert isinstance(model.invoke("What is 17 + 25?"), Sum)
