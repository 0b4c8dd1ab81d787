"""A provider that is Google's Gemini API, also on Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gateway.providers.upstream.gemini.reader import CandidateReader
from gateway.providers.upstream.gemini.request import generate_body
from gateway.providers.upstream.translated import TranslatedChat, TranslatingProvider
from gateway.requests.types import ChatRequest
from gateway.settings import SettingsError
from policies.upstream import UpstreamModel

if TYPE_CHECKING:
    from gateway.providers.upstream.gemini.google_credentials import GoogleCredentials


class GeminiProvider(TranslatingProvider):
    """Calls one upstream model."""

    api_name = "Gemini's API"

    def __init__(
        self, name: str, upstream: UpstreamModel, api_key: str | None = None, proxy: str = ""
    ) -> None:
        """Raises SettingsError where google-auth is needed and not installed."""
        super().__init__(name, upstream, api_key, proxy)
        self._credentials = _credentials(name) if upstream.credentials == "google" else None

    def headers(self, api_key: str | None) -> dict[str, str]:
        """The headers of every request."""
        return {"x-goog-api-key": api_key} if api_key else {}

    async def signed_headers(self, path: str, body: bytes) -> Mapping[str, str]:
        """The credentials of one request. Raises UpstreamFailed without credentials."""
        return {} if self._credentials is None else await self._credentials.headers()

    def translate(self, request: ChatRequest, body: Mapping[str, Any]) -> TranslatedChat:
        """The request. Raises InvalidRequest."""
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        path = f"/models/{quote(self.remote_name.removeprefix('models/'))}:{method}"
        return TranslatedChat(path, *generate_body(request, body, self.remote_name))

    def reader(self, request: ChatRequest) -> CandidateReader:
        """For one answer."""
        return CandidateReader(self.client.name, self.client.redactor, request.num_choices)


def _credentials(model: str) -> GoogleCredentials:
    try:
        from gateway.providers.upstream.gemini.google_credentials import GoogleCredentials
    except ImportError as error:
        raise SettingsError(
            f"model {model!r} needs google-auth for its `credentials`: pip install 'penstock[vertex]'"
        ) from error
    return GoogleCredentials(model)
