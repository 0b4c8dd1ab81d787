"""Sends a provider's answer: collected into one body, streamed as SSE, or relayed unchanged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.answer import Delta, Generated, Relayed
from gateway.exchange.exchange import Exchange
from gateway.exchange.shape import CollectedChoice, Shape
from gateway.web.http_call import HttpCall


async def send_generated(
    exchange: Exchange,
    answer: Generated,
    shape: Shape,
    call: HttpCall,
    finish: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send generated text in the endpoint's shape. Raises what the provider or `finish` raises.

    `finish` is awaited when the answer is complete, before its last byte is sent.
    """
    answer.response_id = shape.response_id
    is_stream = exchange.request.is_stream
    if is_stream:
        last = await _stream(exchange, answer, shape, call)
    else:
        last = await _collect(exchange, answer, shape)
    if finish is not None:
        await finish()
    if is_stream:
        await call.end_stream(last)
    else:
        await call.respond(last, headers=exchange.response_headers)


async def _collect(exchange: Exchange, answer: Generated, shape: Shape) -> bytes:
    """The whole body."""
    choices: dict[int, CollectedChoice] = {}
    async for delta in answer.deltas:
        _record(exchange, answer, delta)
        choices.setdefault(delta.index, CollectedChoice()).add(delta)
    return shape.whole([choices[index] for index in sorted(choices)], answer.usage)


async def _stream(exchange: Exchange, answer: Generated, shape: Shape, call: HttpCall) -> bytes:
    """Send all events but the last ones, which are returned."""
    # The status is sent with the first delta: until then a full queue or a dead engine can be a 429 or 503.
    first = await anext(answer.deltas, None)
    if first is not None:
        _record(exchange, answer, first)
    deadlines = exchange.asked.deadlines
    await call.start_stream(exchange.response_headers)
    piece = shape.opening() + (shape.chunk(first) if first is not None else b"")
    while True:
        if piece:
            deadlines.pause_idle()
            await call.write(piece)
            deadlines.resume_idle()
        delta = await anext(answer.deltas, None)
        if delta is None:
            break
        _record(exchange, answer, delta)
        piece = shape.chunk(delta)
    return shape.closing(answer.usage)


async def send_whole(exchange: Exchange, body: bytes, call: HttpCall) -> None:
    """Send an answer that is no text."""
    exchange.asked.deadlines.record_output()
    exchange.asked.telemetry.chunk()
    await call.respond(body, headers=exchange.response_headers)


async def send_relayed(exchange: Exchange, answer: Relayed, call: HttpCall) -> None:
    """Send an upstream's answer unchanged. Raises what the provider raises."""
    exchange.asked.deadlines.record_output()
    if isinstance(answer.body, bytes):
        exchange.asked.telemetry.chunk()
        await call.respond(answer.body, answer.media_type.encode("ascii"), headers=exchange.response_headers)
        return
    await call.start_stream(exchange.response_headers)
    async for piece in answer.body:
        exchange.asked.telemetry.chunk()
        await call.write(piece)
    await call.end_stream()


def _record(exchange: Exchange, answer: Generated, delta: Delta) -> None:
    """Record a delta in telemetry, deadlines and finish reasons."""
    exchange.asked.telemetry.chunk()
    exchange.asked.deadlines.record_output()
    if delta.finish_reason is not None:
        answer.finish_reasons.append(delta.finish_reason)
