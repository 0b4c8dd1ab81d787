"""Ranks documents with an encoder: a document's score is the cosine of its vector and the query's.

An encoder is a bi-encoder: it reads query and document apart, so the order is that of a search by vectors. A
cross-encoder, which reads both at once, ranks better; upstreams have some.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.answer import Answer, Embedded
from gateway.endpoints.rerank.request import RerankRequest, check_fields, text_of
from gateway.errors import InvalidRequest
from gateway.exchange.exchange import Exchange
from gateway.exchange.shape import encode
from gateway.providers.base import ModelCall, Provider
from gateway.providers.encoder import EncoderProvider
from gateway.providers.upstream.openai import OpenAIProvider

_INPUT = re.compile(r"\binput(?:\[(\d+)\])?(?=[`'])")


async def ask_to_rank(provider: Provider, call: ModelCall[RerankRequest]) -> Answer:
    """An upstream's answer, or the vectors of the query and of each document. Raises ApiError."""
    request = call.request
    if isinstance(provider, OpenAIProvider):
        return await provider.ask("/rerank", call)
    if not isinstance(provider, EncoderProvider):
        raise InvalidRequest(
            f"The model {request.model[:128]!r} does not rank documents: /v1/rerank takes an encoder, or an "
            "upstream of the API openai that has it. GET /v1/models lists the models.",
            param="model",
            code="model_not_supported",
        )
    ignored = check_fields(request, call.body, provider.name, provider.unknown_fields)
    texts = [request.query, *(text_of(each) for each in request.documents)]
    try:
        return await provider.vectors(texts, ignored)
    except InvalidRequest as error:
        raise _renamed(error) from None


def ranking(exchange: Exchange, answer: Embedded) -> bytes:
    """The body that answers /v1/rerank: the best first, equal ones in the order of the request."""
    request, model = exchange.request, exchange.chosen_model
    assert isinstance(request, RerankRequest)
    found = scores(answer.vectors)
    order = np.argsort(-found, kind="stable")[: request.top_n]
    num_tokens = answer.usage.prompt_tokens
    results: list[dict[str, object]] = [
        {"index": int(index), "relevance_score": float(found[index])} for index in order
    ]
    if request.return_documents is not False:
        for result, index in zip(results, order, strict=True):
            result["document"] = {"text": text_of(request.documents[index])}
    return encode(
        {
            "id": "rerank-" + secrets.token_hex(14),
            "object": "list",
            "model": model.name,
            "results": results,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            "meta": {"tokens": {"input_tokens": num_tokens}},
        }
    )


def scores(vectors: Sequence[bytes]) -> NDArray[np.float64]:
    """The cosine of the first vector and each of the others, from -1 to 1; 0 where one has no direction."""
    found = np.stack([np.frombuffer(each, "<f4") for each in vectors]).astype(np.float64)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    units = np.divide(found, lengths, out=np.zeros_like(found), where=lengths > 0)
    cosines: NDArray[np.float64] = np.clip(units[1:] @ units[0], -1.0, 1.0)
    return cosines


def _renamed(error: InvalidRequest) -> InvalidRequest:
    """An encoder's error in the fields of this API: its first input is the query."""

    def field(number: str | None) -> str:
        if number is None:
            return "documents"
        return "query" if number == "0" else f"documents[{int(number) - 1}]"

    named = _INPUT.search(error.message)
    message = _INPUT.sub(lambda match: field(match[1]), error.message)
    return InvalidRequest(message, param=field(named[1]) if named else "documents", code=error.code)
