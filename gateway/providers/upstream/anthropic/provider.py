"""A provider that is Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.providers.upstream.anthropic.reader import MessageReader
from gateway.providers.upstream.anthropic.request import messages_body
from gateway.providers.upstream.translated import TranslatedChat, TranslatingProvider
from gateway.requests.types import ChatRequest

API_VERSION = "2023-06-01"
"""The last one with temperature, top_p and top_k."""


class AnthropicProvider(TranslatingProvider):
    """Calls one upstream model."""

    api_name = "Anthropic's API"

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Of every request."""
        return {"anthropic-version": API_VERSION} | ({"x-api-key": api_key} if api_key else {})

    def translate(self, request: ChatRequest, body: Mapping[str, Any]) -> TranslatedChat:
        """The request. Raises InvalidRequest."""
        limit = self.upstream.default_max_tokens
        found, ignored = messages_body(request, body, self.remote_name, limit)
        if self.upstream.prompt_caching:
            found["cache_control"] = {"type": "ephemeral"}
        return TranslatedChat("/messages", found, ignored)

    def reader(self, request: ChatRequest) -> MessageReader:
        """For one answer."""
        return MessageReader(self.client.name, self.client.redactor)
