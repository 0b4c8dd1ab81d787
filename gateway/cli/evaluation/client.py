"""Any OpenAI-compatible API as an evaluation meets it: which models there are, and one answer at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec

from backend.pico.tasks.tool_calls import NO_JSON, call_text
from gateway.cli.evaluation.price import TokenPrice
from gateway.providers.upstream.http_client import (
    ConnectFailed,
    ConnectTimedOut,
    HttpClient,
    Reply,
    encode_headers,
)
from gateway.providers.upstream.http_connection import ConnectionBroken, ReplyTimedOut

CONNECT_TIMEOUT_S = 10.0
LIST_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_MESSAGE_CHARACTERS = 400
_JSON = encode_headers({"content-type": "application/json"})
_T = TypeVar("_T")
_END_OF_THOUGHT = "</think>"


class RequestFailed(Exception):
    """A request without an answer; the message is for the person. `status` is 0 when no response came."""

    def __init__(self, message: str, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class NobodyThere(RequestFailed):
    """No connection: nothing listens at the address."""


class ConnectionLost(RequestFailed):
    """The connection ended before the response was complete."""


class _Pricing(msgspec.Struct, frozen=True):
    prompt: str | float | None = None
    completion: str | float | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """One entry of the list of models; all but the name may be missing."""

    id: str
    owned_by: str | None = None
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    pricing: _Pricing | None = None

    @property
    def price(self) -> TokenPrice | None:
        """None when the server does not say, or says it in words that are no price."""
        if self.pricing is None:
            return None
        try:
            prompt, completion = Decimal(str(self.pricing.prompt)), Decimal(str(self.pricing.completion))
        except InvalidOperation:
            return None
        # OpenRouter lists -1 for its routes, whose price depends on where they lead.
        return TokenPrice(prompt, completion) if min(prompt, completion) >= 0 else None


class _Listing(msgspec.Struct):
    data: list[ListedModel]


class _Function(msgspec.Struct):
    name: str = ""
    arguments: Any = None  # a string by OpenAI's reference; some servers send the object itself, or null


class _ToolCall(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    completion_tokens_details: _Details | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None  # of any shape: an answer counts even where its tokens were not counted


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an answer took; the completion's tokens include those of reasoning."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.prompt + other.prompt, self.completion + other.completion, self.reasoning + other.reasoning
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said; `tokens` is None when the server did not count them."""

    text: str
    is_cut: bool  # by the limit on tokens
    tokens: Tokens | None
    seconds: float


class ApiClient:
    """Connections to one base URL. Make it inside the event loop that uses it."""

    def __init__(self, base_url: str, api_key: str, timeout_s: float) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.base_url = base_url
        self._http = HttpClient(base_url, connect_timeout_s=CONNECT_TIMEOUT_S, headers=headers)
        self._timeout_s = timeout_s

    async def models(self) -> list[ListedModel]:
        """What the server lists. Raises RequestFailed."""
        try:
            reply = await self._http.get("/models", LIST_TIMEOUT_S)
        except (ConnectFailed, ConnectTimedOut) as error:
            raise NobodyThere(f"nothing answers at {self.base_url} ({error})") from None
        except (ConnectionBroken, ReplyTimedOut) as error:
            raise self._broken(error) from None
        return _decode(await self._body(reply, LIST_TIMEOUT_S), _Listing, "list of models").data

    async def ask(self, request: Mapping[str, Any]) -> Answer:
        """Send a chat completion's body and return the first choice. Raises RequestFailed."""
        began_s = time.perf_counter()
        try:
            reply = await self._http.post(
                "/chat/completions", _JSON, json.dumps(request).encode(), self._timeout_s
            )
        except (ConnectFailed, ConnectTimedOut) as error:
            raise NobodyThere(f"no connection to {self.base_url} ({error})") from None
        except (ConnectionBroken, ReplyTimedOut) as error:
            raise self._broken(error) from None
        found = _decode(await self._body(reply, self._timeout_s), _Completion, "chat completion")
        if not found.choices:
            raise RequestFailed("the answer holds no choice")
        choice = found.choices[0]
        seconds = time.perf_counter() - began_s
        return Answer(_text(choice.message), choice.finish_reason == "length", _tokens(found.usage), seconds)

    async def close(self) -> None:
        """Close idle connections."""
        await self._http.close()

    async def _body(self, reply: Reply, timeout_s: float) -> bytes:
        try:
            body = await reply.read_all(timeout_s, MAX_ANSWER_BYTES)
        except (ConnectionBroken, ReplyTimedOut) as error:
            raise self._broken(error) from None
        if reply.status != 200:
            said = _server_message(body)
            message = f"{reply.status}: {said}" if said else f"the server answered {reply.status}"
            raise RequestFailed(message, reply.status, _retry_after_s(reply.headers))
        return body

    def _broken(self, error: Exception) -> RequestFailed:
        if isinstance(error, ReplyTimedOut):
            return RequestFailed(f"{self.base_url} sent nothing within the time limit; --timeout sets it")
        return ConnectionLost(str(error))


def _decode(body: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except NO_JSON as error:
        if said := _server_message(body):  # an error in spite of status 200
            code = _error_code(body)
            raise RequestFailed(f"{code or 'the answer is an error'}: {said}", code) from None
        raise RequestFailed(
            f"the answer is no {what} ({error}); is the URL an OpenAI-compatible API's?"
        ) from None


def _fields(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except NO_JSON:
        return {}
    return found if isinstance(found, dict) else {}


def _server_message(body: bytes) -> str:
    """What an error's body says, in OpenAI's form or a flat one; "" when it is neither."""
    fields = _fields(body)
    error = fields.get("error")
    nested = error.get("message") if isinstance(error, dict) else error
    said = (each for each in (nested, fields.get("message"), fields.get("detail")) if isinstance(each, str))
    return next(said, "")[:MAX_MESSAGE_CHARACTERS]


def _error_code(body: bytes) -> int:
    """The status that an error's body holds, as OpenRouter's does; 0 when it holds none."""
    error = _fields(body).get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 0


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:  # absent, or a date
        return None


def _text(message: _Message) -> str:
    """The answer as the graders read it: tool calls as the pico family writes them, reasoning left out.

    Servers without a reasoning parser leave the thought in the content.
    """
    content = (message.content or "").rpartition(_END_OF_THOUGHT)[2].strip()
    calls = [_call_text(call.function) for call in message.tool_calls or ()]
    return "\n".join(filter(None, [content, *calls]))


def _call_text(function: _Function) -> str:
    given = "{}" if function.arguments in (None, "") else function.arguments
    try:
        return call_text(function.name, json.loads(given) if isinstance(given, str) else given)
    except NO_JSON:  # wrong, and graded as such
        return call_text(function.name, given if isinstance(given, str) else "")


def _tokens(usage: object) -> Tokens | None:
    try:
        counted = msgspec.convert(usage, _Usage)
    except msgspec.ValidationError:  # none, or without numbers
        return None
    details = counted.completion_tokens_details
    reasoning = (details.reasoning_tokens or 0) if details is not None else 0
    return Tokens(counted.prompt_tokens, counted.completion_tokens, reasoning)
