"""keep_record: the request's record for the console, and its place among those that run."""

from __future__ import annotations

from gateway.errors import NotFound, Unauthorized
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.model_table import ModelTable
from gateway.exchange.turns import user_turns
from gateway.pipeline.recent_requests import RecentRequests
from gateway.pipeline.request_record import record_of

MAX_PROMPT_CHARS = 4000


class KeepRecord(Stage):
    """The stage. First, so that it sees all others begin and end."""

    is_for_calls = True

    def __init__(self, recent: RecentRequests | None, models: ModelTable, *, keeps_texts: bool) -> None:
        """`recent` None: the console is off."""
        self._recent = recent
        self._models = models
        self._keeps_texts = keeps_texts

    async def enter(self, exchange: Exchange) -> None:
        """Begin the timeline."""
        if self._recent is not None:
            exchange.asked.telemetry.keep_timeline()
            self._recent.running[exchange] = None

    def settle(self, exchange: Exchange) -> None:
        """Keep the record, unless the caller is unknown: strangers must not push out what others did."""
        timeline = exchange.asked.telemetry.timeline
        if self._recent is None or timeline is None:
            return
        del self._recent.running[exchange]
        if not isinstance(exchange.error, Unauthorized):
            texts = user_turns(exchange.request) if self._keeps_texts and exchange.routed is not None else []
            prompt = texts[-1][:MAX_PROMPT_CHARS] if texts else ""
            self._recent.records.append(record_of(exchange, timeline, self._asked(exchange), prompt))

    def _asked(self, exchange: Exchange) -> str:
        """The model that was asked for; "" for an unknown name, which may be any text."""
        asked: str = getattr(getattr(exchange, "request", None), "model", "")
        try:
            if exchange.routed is None:
                self._models.resolve(asked)
        except NotFound:
            return ""
        return asked
