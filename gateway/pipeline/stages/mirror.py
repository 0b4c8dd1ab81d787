"""mirror: a copy of the request to another model, whose answer is measured and thrown away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from gateway.accounting.ledger import cost_usd
from gateway.answer import Answer, Embedded, Generated, Relayed, close_answer
from gateway.errors import ApiError, NotFound, TimedOut, to_api_error
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.exchange.prompt_embedding import Embed, no_meaning
from gateway.providers.upstream.generated import in_deltas
from gateway.requests.types import ChatRequest
from gateway.routing.decision_log import DecisionLog
from gateway.routing.memory import RoutingMemory
from gateway.telemetry import spans
from gateway.telemetry.request import CallResult, RequestTelemetry, Telemetry
from policies.routes import Shadow
from router.agreement import agreement
from router.log import Label

SHORT_CHARS = 60
"""Answers up to this length are compared by words alone."""


class Mirror(Stage):
    """The stage. What it sends counts as the endpoint `shadow` in metrics, and never delays the request."""

    def __init__(
        self,
        models: ModelTable,
        telemetry: Telemetry,
        memory: RoutingMemory | None = None,
        log: DecisionLog | None = None,
        embed: Embed = no_meaning,
    ) -> None:
        """`log`: where labels are recorded; `embed`: what compares long answers."""
        memory = memory or RoutingMemory()
        self._ledger, self._shadows = memory.ledger, memory.shadows
        self._log = log
        self._embed = embed
        self._models = models
        self._telemetry = telemetry

    async def enter(self, exchange: Exchange) -> None:
        """Start a shadow request where a rule says so and the rate allows it."""
        shadow = self._shadow(exchange)
        if shadow is None or exchange.answer is not None or random.random() >= shadow.share:
            return
        if not self._shadows.try_count(shadow):
            return
        try:
            model = self._models.resolve(shadow.model)
        except NotFound:  # an adapter that has been unloaded
            return
        telemetry = self._telemetry.begin("shadow", "POST", "", [])
        telemetry.annotate(
            {spans.REQUEST_ID: exchange.asked.request_id, spans.TENANT: exchange.principal.tenant}
        )
        if shadow.is_right and self._log is not None and isinstance(exchange.request, ChatRequest):
            exchange.sent_text = asyncio.get_running_loop().create_future()
        self._shadows.start(self._ask(exchange, model, telemetry))

    def settle(self, exchange: Exchange) -> None:
        """Stop waiting for a text that will not come: there is nothing to compare with."""
        if exchange.sent_text is not None and not exchange.sent_text.done():
            exchange.sent_text.cancel()

    async def _ask(self, exchange: Exchange, model: ServedModel, telemetry: RequestTelemetry) -> None:
        """Ask the model and read its answer to the end. Nothing of it is kept, but how far it agrees."""
        answer: Answer | None = None
        error: ApiError | None = None
        provider = model.upstream_api if model.kind == "upstream" else spans.PROVIDER_OURS
        telemetry.link(exchange.asked.telemetry.traceparent)
        telemetry.call_started(model.name, provider, exchange.body, model.metrics_label, model.place)
        try:
            async with asyncio.timeout(model.limits.total_s):
                answer = await exchange.ask(model, telemetry)
                if exchange.sent_text is not None and isinstance(answer, Relayed):
                    answer = in_deltas(answer)
                text = "".join([piece async for piece in _pieces(answer, telemetry)])
                if exchange.sent_text is not None:
                    await self._compare(exchange, model, text, await exchange.sent_text)
        except TimeoutError:
            error = TimedOut("The shadow request took too long.")
        except Exception as failure:  # noqa: BLE001 - it must not matter to the request
            error = to_api_error(failure)
        finally:
            await close_answer(answer)
            error_type = "" if error is None else error.kind
            usage = None if answer is None else answer.usage
            if usage is not None:
                usd = cost_usd(model.price, usage, is_batch=exchange.asked.is_batch)
                self._ledger.spend("", model.parent or model.name, usd)
            status = 200 if error is None else error.status
            telemetry.call_ended(
                CallResult(
                    usage=usage,
                    response_model=model.answered_as(answer),
                    error_type=error_type,
                    error_status=0 if error is None else status,
                )
            )
            telemetry.end(status, error_type)

    async def _compare(self, exchange: Exchange, model: ServedModel, right: str, sent: str) -> None:
        """Record how far the sent answer agrees with the shadow's."""
        chosen = exchange.chosen_model.name
        vectors = [await self._embed(text) for text in (sent, right)] if len(right) > SHORT_CHARS else []
        first, second = vectors or (None, None)
        cosine = None if first is None or second is None else float(first @ second)
        scores = {chosen: round(agreement(sent, right, cosine), 4), model.name: 1.0}
        if self._log is not None and chosen != model.name:
            self._log.label(Label(label_of=exchange.asked.request_id, scores=scores, kind="shadow"))

    def _shadow(self, exchange: Exchange) -> Shadow | None:
        """The shadow of the last rule that has one."""
        changes = reversed(exchange.decided.choice.changes)
        return next((change.shadow for change in changes if change.shadow is not None), None)


async def _pieces(answer: Answer, telemetry: RequestTelemetry) -> AsyncIterator[str]:
    """The text of each piece, as far as it is known; each is measured."""
    if isinstance(answer, Embedded):
        telemetry.chunk()
    elif isinstance(answer, Generated):
        async for delta in answer.deltas:
            telemetry.chunk()
            yield delta.text
    elif isinstance(answer.body, bytes):
        telemetry.chunk()
    else:
        async for _ in answer.body:
            telemetry.chunk()
