"""mirror: a copy of the request to another model, whose answer is measured and thrown away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

from gateway.answer import Answer, Embedded, Generated, close_answer
from gateway.errors import ApiError, NotFound, TimedOut, to_api_error
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.telemetry import spans
from gateway.telemetry.request import CallResult, RequestTelemetry, Telemetry
from policies.routes import Shadow

MAX_CONCURRENT = 16
"""Shadow requests of one worker at a time, whatever the policies allow."""


class Mirror:
    """The stage. What it sends counts as the endpoint `shadow` in metrics, and never delays the request."""

    def __init__(self, models: ModelTable, telemetry: Telemetry) -> None:
        self._models = models
        self._telemetry = telemetry
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent: dict[str, tuple[float, int]] = {}  # by model: start of this minute, requests in it

    async def __call__(self, exchange: Exchange) -> None:
        """Start a shadow request where a rule says so and the rate allows it."""
        shadow = self._shadow(exchange)
        if shadow is None or exchange.answer is not None or random.random() >= shadow.share:
            return
        if len(self._tasks) >= MAX_CONCURRENT or not self._may_send(shadow):
            return
        try:
            model = self._models.resolve(shadow.model)
        except NotFound:  # an adapter that has been unloaded
            return
        telemetry = self._telemetry.begin("shadow", "POST", "", [])
        telemetry.annotate({spans.REQUEST_ID: exchange.request_id, spans.TENANT: exchange.principal.tenant})
        task = asyncio.create_task(_ask(exchange, model, telemetry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _shadow(self, exchange: Exchange) -> Shadow | None:
        """That of the last rule that has one."""
        changes = () if exchange.choice is None else exchange.choice.changes
        return next((change.shadow for change in reversed(changes) if change.shadow is not None), None)

    def _may_send(self, shadow: Shadow) -> bool:
        now_s = time.monotonic()
        began_s, count = self._sent.get(shadow.model, (now_s, 0))
        if now_s - began_s >= 60:
            began_s, count = now_s, 0
        self._sent[shadow.model] = (began_s, count + 1)
        return count < shadow.max_per_minute


async def _ask(exchange: Exchange, model: ServedModel, telemetry: RequestTelemetry) -> None:
    """Ask the model and read its answer to the end. Nothing of it is kept."""
    answer: Answer | None = None
    error: ApiError | None = None
    provider = model.upstream_api if model.kind == "upstream" else spans.PROVIDER_OURS
    telemetry.call_started(model.name, provider, exchange.body, model.metrics_label)
    try:
        async with asyncio.timeout(model.limits.total_s):
            answer = await exchange.ask(model, telemetry)
            async for _ in _pieces(answer):
                telemetry.chunk()
    except TimeoutError:
        error = TimedOut("The shadow request took too long.")
    except Exception as failure:  # noqa: BLE001 - it must not matter to the request
        error = to_api_error(failure)
    finally:
        await close_answer(answer)
        error_type = "" if error is None else type(error).__name__
        usage = None if answer is None else answer.usage
        telemetry.call_ended(CallResult(usage=usage, response_model=model.name, error_type=error_type))
        telemetry.end(200 if error is None else error.status, error_type)


async def _pieces(answer: Answer) -> AsyncIterator[object]:
    if isinstance(answer, Embedded):
        yield answer.vectors
    elif isinstance(answer, Generated):
        async for delta in answer.deltas:
            yield delta
    elif isinstance(answer.body, bytes):
        yield answer.body
    else:
        async for piece in answer.body:
            yield piece
