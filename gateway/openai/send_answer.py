"""Sends a provider's answer: collected into one body, streamed as events, or passed on as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.answer import Answer, Delta, Embedded, Generated, Relayed
from gateway.openai.embeddings import embeddings_body
from gateway.openai.shape import CollectedChoice, Shape
from gateway.pipeline.exchange import Exchange
from gateway.requests.types import EmbeddingRequest
from gateway.web.http_call import Call


async def send_generated(exchange: Exchange, answer: Generated, shape: Shape, call: Call) -> None:
    """Shape and send what we generate. Raises what the provider raises."""
    assert exchange.request is not None
    answer.response_id = shape.response_id
    if exchange.request.stream:
        await _stream(exchange, answer, shape, call)
    else:
        await _collect(exchange, answer, shape, call)


async def _collect(exchange: Exchange, answer: Generated, shape: Shape, call: Call) -> None:
    choices: dict[int, CollectedChoice] = {}
    async for delta in answer.deltas:
        _note(exchange, answer, delta)
        choices.setdefault(delta.index, CollectedChoice()).add(delta)
    body = shape.whole([choices[index] for index in sorted(choices)], answer.usage)
    await call.respond(body, headers=exchange.response_headers)


async def _stream(exchange: Exchange, answer: Generated, shape: Shape, call: Call) -> None:
    # Headers wait for the first delta: until then a full queue or a dead engine can still be a status.
    first = await anext(answer.deltas, None)
    if first is not None:
        _note(exchange, answer, first)
    watch = exchange.watch
    await call.start_stream(exchange.response_headers)
    piece = shape.opening() + (shape.chunk(first) if first is not None else b"")
    while True:
        if piece:
            watch.is_sending = True
            await call.write(piece)
            watch.is_sending = False
        delta = await anext(answer.deltas, None)
        if delta is None:
            break
        _note(exchange, answer, delta)
        piece = shape.chunk(delta)
    await call.end_stream(shape.closing(answer.usage))


async def send_embedded(exchange: Exchange, answer: Embedded, call: Call) -> None:
    """Shape and send vectors."""
    request, model = exchange.request, exchange.model
    assert isinstance(request, EmbeddingRequest) and model is not None
    exchange.watch.progress()
    exchange.telemetry.chunk()
    body = embeddings_body(
        answer.vectors,
        model.name,
        answer.usage.prompt_tokens,
        as_base64=request.encoding_format == "base64",
    )
    await call.respond(body, headers=exchange.response_headers)


async def send_relayed(exchange: Exchange, answer: Relayed, call: Call) -> None:
    """Pass on what an upstream answered. Raises what the provider raises."""
    exchange.watch.progress()
    if isinstance(answer.body, bytes):
        exchange.telemetry.chunk()
        await call.respond(answer.body, answer.media_type.encode("ascii"), headers=exchange.response_headers)
        return
    await call.start_stream(exchange.response_headers)
    async for piece in answer.body:
        exchange.telemetry.chunk()
        await call.write(piece)
    await call.end_stream()


async def close_answer(answer: Answer | None) -> None:
    """Release whatever the answer still holds: generation, memory, an upstream connection. Idempotent."""
    source: AsyncIterator[object] | bytes | None = None
    if isinstance(answer, Generated):
        source = answer.deltas
    elif isinstance(answer, Relayed):
        source = answer.body
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def _note(exchange: Exchange, answer: Generated, delta: Delta) -> None:
    """Record a delta for telemetry, deadlines and finish reasons."""
    exchange.telemetry.chunk()
    exchange.watch.progress()
    if delta.finish_reason is not None:
        answer.finish_reasons.append(delta.finish_reason)
