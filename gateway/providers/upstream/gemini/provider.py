"""A provider that is Google's Gemini API, also on Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gateway.providers.upstream.gemini.reader import CandidateReader
from gateway.providers.upstream.gemini.request import generate_body
from gateway.providers.upstream.translated import TranslatedChat, TranslatingProvider
from gateway.requests.types import ChatRequest


class GeminiProvider(TranslatingProvider):
    """Calls one upstream model."""

    api_name = "Gemini's API"

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Of every request."""
        return {"x-goog-api-key": api_key} if api_key else {}

    def translate(self, request: ChatRequest, body: Mapping[str, Any]) -> TranslatedChat:
        """The request. Raises InvalidRequest."""
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        path = f"/models/{quote(self.remote_name.removeprefix('models/'))}:{method}"
        return TranslatedChat(path, *generate_body(request, body, self.remote_name))

    def reader(self, request: ChatRequest) -> CandidateReader:
        """For one answer."""
        return CandidateReader(self.client.name, self.client.redactor, request.num_choices)
