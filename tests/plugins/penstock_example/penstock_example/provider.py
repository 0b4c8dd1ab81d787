"""The API `parrot`: POST {base_url}/talk takes `{"turns": […], "stream": bool}` and answers with words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.answer import Delta
from gateway.providers.upstream.apis import ApiSpec
from gateway.providers.upstream.chat_reader import JSON_ERRORS, ChatReader
from gateway.providers.upstream.chat_turns import turns_and_system
from gateway.providers.upstream.fields import field_rules
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.translated import TranslatedChat, TranslatingProvider
from gateway.requests.field_support import check_supported
from gateway.requests.messages import content_text
from gateway.requests.types import ChatRequest

FIELDS = field_rules(
    "Parrot's API",
    lacking=(
        "temperature", "top_p", "stop", "max_tokens", "max_completion_tokens", "response_format",
        "reasoning_effort", "tools", "tool_choice",
    ),
)  # fmt: skip
"""What it does with each field of a chat: unsupported ones are refused by name."""


class Piece(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    words: str = ""
    is_last: bool = False
    num_read: int = 0
    num_said: int = 0
    error: object = None


_decode = msgspec.json.Decoder(Piece).decode


class ParrotReader(ChatReader):
    """Follows one answer."""

    def __init__(self, model: str, redactor: Redactor) -> None:
        super().__init__(model, redactor)
        self._is_complete = False

    def read_whole(self, body: bytes) -> None:
        """Read an answer that is not streamed. Raises ApiError."""
        self.read(body)
        self.check_complete()

    def read(self, event: bytes) -> None:
        """Read one event of a stream. Raises ApiError."""
        try:
            piece = _decode(event)
        except JSON_ERRORS as error:
            raise self.not_json() from error
        if piece.error is not None:
            raise self.reported(event)
        if piece.words:
            self.deltas.append(Delta(0, piece.words))
        if piece.is_last:
            self.usage.prompt_tokens, self.usage.completion_tokens = piece.num_read, piece.num_said
            self.deltas.append(Delta(0, finish_reason="stop"))
        self._is_complete = piece.is_last

    def check_complete(self) -> None:
        """Raise ApiError where the last piece has not come."""
        if not self._is_complete:
            raise self.invalid("its stream ended before the answer was complete")


class ParrotProvider(TranslatingProvider):
    """Calls one upstream model."""

    api_name = "Parrot's API"

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Every request has the key."""
        return {"x-parrot-key": api_key} if api_key else {}

    def translate(self, request: ChatRequest, body: Mapping[str, Any]) -> TranslatedChat:
        """The request. Raises InvalidRequest."""
        ignored = check_supported(body, FIELDS, request.model)
        turns, system = turns_and_system(request.messages, _words, "parrot", "says")
        talk = {"bird": self.remote_name, "turns": turns, "rules": system, "stream": bool(request.stream)}
        return TranslatedChat("/talk", talk, ignored)

    def reader(self, request: ChatRequest) -> ParrotReader:
        """For one answer."""
        return ParrotReader(self.client.name, self.client.redactor)


def _words(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    text = content_text(message, where)
    return [{"words": text}] if text else []


PARROT = ApiSpec(ParrotProvider, span_name="example.parrot")
