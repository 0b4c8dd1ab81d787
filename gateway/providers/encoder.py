"""Our encoder process as a provider: embeddings and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from backend.errors import EngineError, EngineUnavailable
from backend.server.encoder_client import EncoderClient
from gateway.answer import Embedded, Generated, Usage
from gateway.errors import InvalidRequest, Unavailable, retry_after, to_api_error
from gateway.providers.base import ModelCall
from gateway.requests.field_support import EMBEDDINGS, check_supported
from gateway.requests.prompts import parse_prompts
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from policies.document import UnknownFields

FORMATS = ("float", "base64")
RETRY_S = 2.0


def no_text(name: str, path: str) -> InvalidRequest:
    """The refusal of a request for text, also where no encoder runs."""
    return InvalidRequest(
        f"The model {name!r} makes embeddings; it does not answer {path}.",
        param="model",
        code="model_not_supported",
    )


class EncoderProvider:
    """Answers /v1/embeddings with the encoder process of `client`."""

    def __init__(self, name: str, client: EncoderClient, unknown_fields: UnknownFields | None = None) -> None:
        self.name = name
        self.client = client
        self.unknown_fields = unknown_fields

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated:
        """Refuse: an encoder generates nothing."""
        raise no_text(self.name, "/v1/chat/completions")

    async def complete(self, call: ModelCall[CompletionRequest]) -> Generated:
        """Refuse: an encoder generates nothing."""
        raise no_text(self.name, "/v1/completions")

    async def embed(self, call: ModelCall[EmbeddingRequest]) -> Embedded:
        """Answer /v1/embeddings; inputs beyond the encoder's context are refused, not truncated."""
        request = call.request
        ignored = check_supported(call.body, EMBEDDINGS, self.name, self.unknown_fields)
        inputs = parse_prompts(request.input, "input")
        self._check(request, inputs)
        return await self.vectors(cast("list[str] | list[list[int]]", inputs), ignored)

    async def vectors(
        self, inputs: list[str] | list[list[int]], ignored_fields: Sequence[str] = ()
    ) -> Embedded:
        """One vector for each input. Raises ApiError, where the field is `input`."""
        try:
            found = await self.client.embed(inputs)
        except EngineUnavailable:
            raise self._unavailable() from None
        except EngineError as error:
            raise to_api_error(error) from None
        return Embedded(found.vectors, Usage(prompt_tokens=sum(found.num_tokens)), ignored_fields)

    def _check(self, request: EmbeddingRequest, inputs: list[str | list[int]]) -> None:
        if request.encoding_format not in (None, *FORMATS):
            raise InvalidRequest(
                "Invalid value for 'encoding_format': expected 'float' or 'base64'.", param="encoding_format"
            )
        if "" in inputs:
            raise InvalidRequest("'input' holds an empty text: give at least one character.", param="input")
        hello = self.client.hello
        if hello is None:
            raise self._unavailable()
        if request.dimensions not in (None, hello.dimensions):
            raise InvalidRequest(
                f"'dimensions' ({request.dimensions}) is not supported: {self.name!r} makes "
                f"{hello.dimensions} numbers. Leave it out.",
                param="dimensions",
                code="unsupported_parameter",
            )

    def _unavailable(self) -> Unavailable:
        return Unavailable(
            f"The model {self.name!r} cannot answer now: its encoder is starting or restarting. Try again.",
            headers=retry_after(RETRY_S),
        )
