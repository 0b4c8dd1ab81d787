"""A provider that is Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.providers.base import ModelCall
from gateway.providers.upstream.anthropic.reader import MessageReader
from gateway.providers.upstream.anthropic.request import messages_body
from gateway.providers.upstream.translated import TranslatedChat, TranslatingProvider
from gateway.requests.types import ChatRequest

API_VERSION = "2023-06-01"
"""The last one with temperature, top_p and top_k."""


COUNTED_FIELDS = (
    "model", "messages", "system", "tools", "tool_choice", "thinking", "output_config",
)  # fmt: skip
"""What a request to count tokens may have."""


class _Count(msgspec.Struct):
    input_tokens: int


_COUNT = msgspec.json.Decoder(_Count)


class AnthropicProvider(TranslatingProvider):
    """Calls one upstream model."""

    api_name = "Anthropic's API"

    def headers(self, api_key: str | None) -> dict[str, str]:
        """The headers of every request."""
        return {"anthropic-version": API_VERSION} | ({"x-api-key": api_key} if api_key else {})

    def translate(self, request: ChatRequest, body: Mapping[str, Any]) -> TranslatedChat:
        """The request. Raises InvalidRequest."""
        limit = self.upstream.default_max_tokens
        found, ignored = messages_body(request, body, self.remote_name, limit)
        if self.upstream.prompt_caching:
            found["cache_control"] = {"type": "ephemeral"}
        return TranslatedChat("/messages", found, ignored)

    async def count_tokens(self, call: ModelCall[ChatRequest]) -> int:
        """The tokens of a chat's prompt, as the upstream counts them. Raises ApiError."""
        chat = self.translate(call.request, call.body)
        body = {name: value for name, value in chat.body.items() if name in COUNTED_FIELDS}
        raw = await self.ask("/messages/count_tokens", body, call)
        try:
            return _COUNT.decode(raw).input_tokens
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self.reader(call.request).invalid("it has no count of tokens") from None

    def reader(self, request: ChatRequest) -> MessageReader:
        """For one answer."""
        return MessageReader(self.client.name, self.client.redactor)
