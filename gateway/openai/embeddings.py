"""The JSON of /v1/embeddings."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Sequence
from sys import byteorder

from gateway.answer import Embedded
from gateway.exchange.exchange import Exchange
from gateway.exchange.shape import encode
from gateway.requests.types import EmbeddingRequest


def embeddings_answer(exchange: Exchange, answer: Embedded) -> bytes:
    """The body that answers /v1/embeddings."""
    request, model = exchange.request, exchange.chosen_model
    assert isinstance(request, EmbeddingRequest)
    as_base64 = request.encoding_format == "base64"
    return embeddings_body(answer.vectors, model.name, answer.usage.prompt_tokens, as_base64=as_base64)


def embeddings_body(vectors: Sequence[bytes], model: str, prompt_tokens: int, *, as_base64: bool) -> bytes:
    """OpenAI's response. `vectors` hold little-endian float32, which base64 encodes as they are."""
    return encode(
        {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": b64encode(vector).decode("ascii") if as_base64 else _numbers(vector),
                }
                for index, vector in enumerate(vectors)
            ],
            "model": model,
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        }
    )


def _numbers(vector: bytes) -> list[float]:
    numbers = array("f", vector)
    if byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
