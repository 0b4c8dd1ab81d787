"""An evaluation's view of any OpenAI-compatible API: which models there are, and one answer at a time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import httpx2
import msgspec
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, RequestOptions, omit

from backend.pico.tasks.tool_calls import NO_JSON, call_text
from gateway.evaluation.bounded_http import AnswerTooLong, BoundedHttp
from gateway.evaluation.price import TokenPrice
from router.cascade import confidence

LIST_TIMEOUT_S = 30.0
MAX_RETRIES = 4
MAX_MESSAGE_CHARACTERS = 400
_T = TypeVar("_T")
_END_OF_REASONING = "</think>"


class RequestFailed(Exception):
    """A request without an answer; the message is for the person. `status` is 0 when no response came."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotReachable(RequestFailed):
    """No connection: nothing listens at the address."""


def with_remedy(error: RequestFailed) -> str:
    """The message for the person, with what to do."""
    if isinstance(error, NotReachable):
        return f"{error}; start one with `penstock serve`, or give --url"
    if error.status in {401, 403}:
        return f"{error} (give the key with --api-key, or with --api-key-env the variable that holds it)"
    return str(error)


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
        """None when the server gives none, or one that is no number."""
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


class _Token(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: Any = None


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    completion_tokens_details: _Details | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    model: Any = None
    usage: Any = None  # of any shape: an answer counts even if its tokens were not counted


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts of an answer; `completion` includes `reasoning`."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.prompt + other.prompt, self.completion + other.completion, self.reasoning + other.reasoning
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer; `tokens` is None when the server did not count them."""

    text: str
    is_cut: bool  # by the token limit
    tokens: Tokens | None
    seconds: float
    model: str = ""  # as the server names it
    confidence: float | None = None  # the lowest probability of a token, where the server tells it


class ApiClient:
    """The OpenAI SDK on one base URL; it retries what may succeed later, with exponential backoff.

    Make it inside the event loop that uses it. Bodies are decoded here: other servers' answers differ from
    OpenAI's in ways that the SDK's types do not expect.
    """

    def __init__(self, base_url: str, api_key: str, timeout_s: float, proxy: str = "") -> None:
        """`timeout_s`: for one answer, retries included. `proxy`: a URL, or "" for none."""
        self.base_url = base_url
        self._timeout_s = timeout_s
        http = BoundedHttp(proxy, _error_status)
        self._sdk = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",
            max_retries=MAX_RETRIES,
            timeout=http.timeout,
            http_client=http,
        )
        # What the SDK adds by itself, or takes from the environment, is for OpenAI, not for this server.
        self._options: RequestOptions = {
            "headers": {
                **{name.lower(): omit for name in self._sdk.default_headers},
                "accept": "application/json",
                "cache-control": "no-store",  # it measures models, not a cache
                "content-type": "application/json",
                "user-agent": "penstock",
                "authorization": f"Bearer {api_key}" if api_key else omit,
            }
        }

    async def models(self) -> list[ListedModel]:
        """What the server lists. Raises RequestFailed."""
        listing = self._sdk.with_options(max_retries=0).get(
            "/models", cast_to=httpx2.Response, options=self._options
        )
        body = await self._send(listing, LIST_TIMEOUT_S)
        return _decode(body, _Listing, "list of models").data

    async def ask(self, request: Mapping[str, Any]) -> Answer:
        """Send a chat completion's body and return the first choice. Raises RequestFailed."""
        began_s = time.perf_counter()
        asking = self._sdk.post(
            "/chat/completions", cast_to=httpx2.Response, body=request, options=self._options
        )
        found = _decode(await self._send(asking, self._timeout_s), _Completion, "chat completion")
        if not found.choices:
            raise RequestFailed("the answer holds no choice")
        choice = found.choices[0]
        seconds = time.perf_counter() - began_s
        return Answer(
            _text(choice.message),
            choice.finish_reason == "length",
            _tokens(found.usage),
            seconds,
            model=found.model if isinstance(found.model, str) else "",
            confidence=_confidence(choice.logprobs),
        )

    async def close(self) -> None:
        """Close idle connections."""
        await self._sdk.close()

    async def _send(self, sending: Awaitable[httpx2.Response], timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return (await sending).content
        except TimeoutError:
            message = f"{self.base_url} gave no answer within the time limit; --timeout sets it"
            raise RequestFailed(message) from None
        except AnswerTooLong as error:
            raise RequestFailed(str(error)) from None
        except APIStatusError as error:
            said = _server_message(error.response.content)
            status = error.status_code
            message = f"{status}: {said}" if said else f"the server answered {status}"
            raise RequestFailed(message, status) from None
        except APIConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
                raise NotReachable(f"nothing answers at {self.base_url} ({cause})") from None
            kind = type(cause or error).__name__
            raise RequestFailed(f"{self.base_url} closed the connection before its answer ({kind})") from None


def _decode(body: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except NO_JSON as error:
        if said := _server_message(body):  # an error with status 200
            raise RequestFailed(f"the answer is an error: {said}") from None
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
    """The message of an error body, in OpenAI's shape or a flat one; "" when it is neither."""
    fields = _fields(body)
    error = fields.get("error")
    nested = error.get("message") if isinstance(error, dict) else error
    said = (each for each in (nested, fields.get("message"), fields.get("detail")) if isinstance(each, str))
    return next(said, "")[:MAX_MESSAGE_CHARACTERS]


def _error_status(body: bytes) -> int:
    """The status inside of an error body, where OpenRouter puts it; 0 when there is none."""
    if b'"error"' not in body:
        return 0
    fields = _fields(body)
    error = fields.get("error")
    code = error.get("code") if isinstance(error, dict) and not fields.get("choices") else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 0


def _text(message: _Message) -> str:
    """The answer as the graders read it: tool calls as the pico family writes them, reasoning left out.

    Servers without a reasoning parser leave the reasoning in the content.
    """
    content = (message.content or "").rpartition(_END_OF_REASONING)[2].strip()
    calls = [_call_text(call.function) for call in message.tool_calls or ()]
    return "\n".join(filter(None, [content, *calls]))


def _call_text(function: _Function) -> str:
    given = "{}" if function.arguments in (None, "") else function.arguments
    try:
        return call_text(function.name, json.loads(given) if isinstance(given, str) else given)
    except NO_JSON:  # wrong, and graded as such
        return call_text(function.name, given if isinstance(given, str) else "")


def _confidence(logprobs: object) -> float | None:
    try:
        found = msgspec.convert(logprobs, _Logprobs)
    except msgspec.ValidationError:  # none, or of another shape
        return None
    return confidence([token.logprob for token in found.content or ()])


def _tokens(usage: object) -> Tokens | None:
    try:
        counted = msgspec.convert(usage, _Usage)
    except msgspec.ValidationError:  # none, or without numbers
        return None
    details = counted.completion_tokens_details
    reasoning = (details.reasoning_tokens or 0) if details is not None else 0
    return Tokens(counted.prompt_tokens, counted.completion_tokens, reasoning)
