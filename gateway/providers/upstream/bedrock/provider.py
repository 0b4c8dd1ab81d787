"""A provider that is AWS Bedrock's Converse API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gateway.providers.upstream.bedrock.events import MEDIA_TYPE, AwsEventReader
from gateway.providers.upstream.bedrock.reader import ConverseReader
from gateway.providers.upstream.bedrock.request import converse_body
from gateway.providers.upstream.bedrock.signer import Signer
from gateway.providers.upstream.translated import TranslatedChat, TranslatingProvider
from gateway.requests.types import ChatRequest
from policies.upstream import UpstreamModel


class BedrockProvider(TranslatingProvider):
    """Calls one upstream model."""

    api_name = "Bedrock's Converse API"
    stream_media_type = MEDIA_TYPE

    def __init__(
        self, name: str, upstream: UpstreamModel, api_key: str | None = None, proxy: str = ""
    ) -> None:
        """Without `api_key` requests are signed with AWS credentials."""
        super().__init__(name, upstream, api_key, proxy)
        self._signer = None if api_key else Signer(name, upstream.base_url)

    def headers(self, api_key: str | None) -> dict[str, str]:
        """The headers of every request."""
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def signed_headers(self, path: str, body: bytes) -> Mapping[str, str]:
        """The signature of one request. Raises UpstreamFailed without credentials."""
        return {} if self._signer is None else await self._signer.headers(path, body)

    def translate(self, request: ChatRequest, body: Mapping[str, Any]) -> TranslatedChat:
        """The request. Raises InvalidRequest."""
        method = "converse-stream" if request.stream else "converse"
        path = f"/model/{quote(self.remote_name, safe='')}/{method}"
        found, ignored = converse_body(request, body, self.remote_name)
        if self.upstream.prompt_caching and found["messages"]:
            found["messages"][-1]["content"].append({"cachePoint": {"type": "default"}})
        return TranslatedChat(path, found, ignored)

    def events(self) -> AwsEventReader:
        """A reader of one stream."""
        return AwsEventReader()

    def reader(self, request: ChatRequest) -> ConverseReader:
        """For one answer."""
        return ConverseReader(self.client.name, self.client.redactor)
