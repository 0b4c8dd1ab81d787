"""One interface over the official clients of the three APIs, for tests that ask each the same."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import anthropic
import openai

from tests.e2e.server import Server

PARAMETERS = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
    "additionalProperties": False,
}
TOOL = {"name": "calculator", "description": "Compute an expression."}
SUM = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
IMAGE_URL = f"data:image/png;base64,{PNG}"


@dataclass
class Asked:
    """What to ask."""

    text: str
    stream: bool = False
    tools: bool = False
    schema: bool = False
    reasoning: bool = False
    image: bool = False


@dataclass
class Answer:
    """What an answer holds, whichever API gave it."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    output_tokens: int = 0
    native: Any = None  # the client's own object

    @property
    def shown(self) -> tuple[str, str, list[tuple[str, Any]]]:
        """What must be the same, streamed or not."""
        return self.text, self.reasoning, self.calls


class Client(Protocol):
    """An official client in front of one server."""

    def ask(self, model: str, asked: Asked) -> Answer:
        """Ask. Raises the client's own errors."""
        ...

    def give_result(self, model: str, asked: Asked, called: Answer, result: str) -> Answer:
        """Answer the call of `called` with `result`."""
        ...

    def pieces(self, model: str, text: str) -> Iterator[object]:
        """The raw events of a stream, for leaving it early."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Chat:
    """/v1/chat/completions."""

    def __init__(self, server: Server) -> None:
        self._client = openai.OpenAI(
            base_url=server.base_url, api_key=server.api_key or "none", max_retries=0
        )
        self.close = self._client.close

    def ask(self, model: str, asked: Asked) -> Answer:
        return self._send(model, asked, self._messages(asked))

    def give_result(self, model: str, asked: Asked, called: Answer, result: str) -> Answer:
        message = called.native
        returned = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": result}
        return self._send(model, asked, [*self._messages(asked), message, returned])

    def pieces(self, model: str, text: str) -> Iterator[object]:
        message: Any = {"role": "user", "content": text}
        with self._client.chat.completions.create(
            model=model, messages=[message], temperature=0, stream=True
        ) as stream:
            yield from stream

    def _messages(self, asked: Asked) -> list[Any]:
        content: Any = asked.text
        if asked.image:
            image = {"type": "image_url", "image_url": {"url": IMAGE_URL}}
            content = [{"type": "text", "text": asked.text}, image]
        return [{"role": "user", "content": content}]

    def _send(self, model: str, asked: Asked, messages: list[Any]) -> Answer:
        fields: dict[str, Any] = {"model": model, "messages": messages, "max_completion_tokens": 400}
        if not asked.reasoning or model.startswith("pico-"):  # with which some services refuse it
            fields["temperature"] = 0
        if asked.tools:
            fields["tools"] = [{"type": "function", "function": {**TOOL, "parameters": PARAMETERS}}]
        if asked.schema:
            schema = {"name": "sum", "schema": SUM}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if asked.reasoning:
            fields["reasoning_effort"] = "high"
        if asked.stream:
            with self._client.chat.completions.stream(**fields) as stream:
                reasoning = ""
                for event in stream:
                    if event.type == "chunk" and event.chunk.choices:
                        reasoning += getattr(event.chunk.choices[0].delta, "reasoning_content", None) or ""
                return self._read(stream.get_final_completion(), reasoning)
        return self._read(self._client.chat.completions.create(**fields))

    def _read(self, completion: Any, reasoning: str | None = None) -> Answer:  # noqa: ANN401
        message = completion.choices[0].message
        if reasoning is None:
            reasoning = getattr(message, "reasoning_content", None) or ""
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
        num_tokens = completion.usage.completion_tokens if completion.usage else 0
        return Answer(message.content or "", reasoning, calls, num_tokens, message)


class Responses:
    """/v1/responses."""

    def __init__(self, server: Server) -> None:
        self._client = openai.OpenAI(
            base_url=server.base_url, api_key=server.api_key or "none", max_retries=0
        )
        self.close = self._client.close

    def ask(self, model: str, asked: Asked) -> Answer:
        content: Any = asked.text
        if asked.image:
            image = {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto"}
            content = [{"type": "input_text", "text": asked.text}, image]
        return self._send(model, asked, [{"role": "user", "content": content}])

    def give_result(self, model: str, asked: Asked, called: Answer, result: str) -> Answer:
        (call,) = [item for item in called.native.output if item.type == "function_call"]
        item = {"type": "function_call_output", "call_id": call.call_id, "output": result}
        return self._send(model, asked, [item], previous_response_id=called.native.id)

    def pieces(self, model: str, text: str) -> Iterator[object]:
        with self._client.responses.create(model=model, input=text, temperature=0, stream=True) as stream:
            yield from stream

    def _send(self, model: str, asked: Asked, items: list[Any], **more: str) -> Answer:
        fields: dict[str, Any] = {"model": model, "input": items, "max_output_tokens": 400, **more}
        if not asked.reasoning or model.startswith("pico-"):  # with which some services refuse it
            fields["temperature"] = 0
        if asked.tools:
            fields["tools"] = [{"type": "function", **TOOL, "parameters": PARAMETERS, "strict": True}]
        if asked.schema:
            fields["text"] = {"format": {"type": "json_schema", "name": "sum", "schema": SUM}}
        if asked.reasoning:
            fields["reasoning"] = {"effort": "high", "summary": "auto"}
        if asked.stream:
            with self._client.responses.stream(**fields) as stream:
                for _ in stream:
                    pass
                return self._read(stream.get_final_response())
        return self._read(self._client.responses.create(**fields))

    def _read(self, response: Any) -> Answer:  # noqa: ANN401
        answer = Answer(response.output_text, output_tokens=response.usage.output_tokens, native=response)
        for item in response.output:
            if item.type == "reasoning":
                answer.reasoning += "".join(part.text for part in item.summary)
            elif item.type == "function_call":
                answer.calls.append((item.name, json.loads(item.arguments)))
        return answer


class Messages:
    """/v1/messages."""

    def __init__(self, server: Server) -> None:
        self._client = anthropic.Anthropic(
            base_url=server.root_url, api_key=server.api_key or "none", max_retries=0
        )
        self.close = self._client.close

    def ask(self, model: str, asked: Asked) -> Answer:
        return self._send(model, asked, self._messages(asked))

    def give_result(self, model: str, asked: Asked, called: Answer, result: str) -> Answer:
        (call,) = [block for block in called.native.content if block.type == "tool_use"]
        block = {"type": "tool_result", "tool_use_id": call.id, "content": result}
        messages = [*self._messages(asked), called.native.to_param(), {"role": "user", "content": [block]}]
        return self._send(model, asked, messages)

    def pieces(self, model: str, text: str) -> Iterator[object]:
        message: Any = {"role": "user", "content": text}
        greedy = {"temperature": 0}
        with self._client.messages.create(
            model=model, messages=[message], max_tokens=1200, stream=True, extra_body=greedy
        ) as stream:
            yield from stream

    def _messages(self, asked: Asked) -> list[Any]:
        content: Any = asked.text
        if asked.image:
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            content = [{"type": "text", "text": asked.text}, {"type": "image", "source": source}]
        return [{"role": "user", "content": content}]

    def _send(self, model: str, asked: Asked, messages: list[Any]) -> Answer:
        fields: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": 400}
        if not asked.reasoning or model.startswith("pico-"):
            fields["extra_body"] = {"temperature": 0}
        if asked.tools:
            fields["tools"] = [{**TOOL, "input_schema": PARAMETERS}]
        if asked.schema:
            fields["output_config"] = {"format": {"type": "json_schema", "schema": SUM}}
        if asked.reasoning:
            fields["thinking"] = {"type": "adaptive"}
        if asked.stream:
            with self._client.messages.stream(**fields) as stream:
                return self._read(stream.get_final_message())
        return self._read(self._client.messages.create(**fields))

    def _read(self, message: Any) -> Answer:  # noqa: ANN401
        answer = Answer(output_tokens=message.usage.output_tokens, native=message)
        for block in message.content:
            if block.type == "thinking":
                answer.reasoning += block.thinking
            elif block.type == "text":
                answer.text += block.text
            else:
                answer.calls.append((block.name, block.input))
        return answer


CLIENTS: dict[str, type[Chat] | type[Responses] | type[Messages]] = {
    "chat": Chat,
    "responses": Responses,
    "messages": Messages,
}
