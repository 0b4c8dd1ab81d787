"""look_up: an answer that we have already, or that an equal request is getting, in place of a model call."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from numpy import float32
from numpy.typing import NDArray

from cache.entry import Entry
from cache.evidence import Verdict
from cache.question import read_question
from cache.semantic_cache import Match
from cache.verify.guards import unreadable
from gateway.answer import Embedded
from gateway.auth import KeyRing
from gateway.errors import TimedOut
from gateway.exchange.answer_text import whole_text
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.model_table import ServedModel
from gateway.exchange.prompt_embedding import Meaning
from gateway.fleet.retries import TIME_LIMITS
from gateway.requests.types import ChatRequest
from gateway.response_cache.directives import HEADER, CacheDirectives, read_directives
from gateway.response_cache.flights import Flight, share_of
from gateway.response_cache.hit_token import HEADER as QUESTION_HEADER
from gateway.response_cache.hit_token import HitToken, write_hit
from gateway.response_cache.recording import Unreadable, recorded_text, replay
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.settings import CacheSettings
from gateway.response_cache.use import HITS, CacheUse, Outcome, bypass_reason, labels_of
from gateway.routing.other_models import fallback_of
from gateway.telemetry import spans
from gateway.telemetry.request import CallResult

MAX_JOINS = 2
"""How many calls a request waits for that end without an answer to share, before it makes its own."""

_HANGS = {*TIME_LIMITS, TimedOut.code}


class LookUp(Stage):
    """The stage, with what all its requests share."""

    def __init__(self, cache: ResponseCache, keys: KeyRing) -> None:
        """`keys` sign what names a hit for feedback."""
        self._cache = cache
        self._keys = keys

    async def enter(self, exchange: Exchange) -> None:
        """Fill `exchange.answer` on a hit, else prepare `exchange.cache_use` for remember.

        A request that guardrails have refused has its answer already. Raises InvalidRequest for unknown
        directives, TimedOut (504) for `only` without a hit.
        """
        model, request = exchange.chosen_model, exchange.request
        is_refused = exchange.answer is not None
        if is_refused:
            return
        metadata = request.metadata if isinstance(request, ChatRequest) else None
        directives = read_directives(*exchange.asked.cache_headers, metadata)
        if model.cache is not None and model.cache.mode != "none" and isinstance(request, ChatRequest):
            with exchange.asked.telemetry.stage(spans.STAGE_LOOK_UP):
                await self._look_up(exchange, model, model.cache, directives)
            use = exchange.cache_use
            outcome: Outcome = "bypass" if use is None else use.outcome
            exchange.response_headers[HEADER] = outcome
            if use is not None and (use.may_write or use.outcome in HITS):
                exchange.response_headers[f"{HEADER}-entry"] = use.entry_key.hex()
            label = model.metrics_label or model.name
            exchange.asked.telemetry.cache_looked_up(outcome, label)
            if use is not None and use.guard:
                exchange.asked.telemetry.cache_guarded(use.guard, label)
        if exchange.answer is None and directives.is_only_cached:
            raise TimedOut("No stored answer, and the request asked for nothing else.", code="cache_miss")

    def settle(self, exchange: Exchange) -> None:
        """Release those who wait for an answer that has not come; forget one that guardrails have flagged."""
        use, screening, error = exchange.cache_use, exchange.screening, exchange.error
        if use is not None:
            if use.flight is not None and error is not None and error.code in _HANGS:
                use.flight.time_out(error)
            is_flagged = screening is not None and (screening.is_flagged or screening.is_blocked)
            self._cache.settle(use, is_flagged=is_flagged)

    async def _look_up(
        self, exchange: Exchange, model: ServedModel, settings: CacheSettings, directives: CacheDirectives
    ) -> None:
        request, cascade = exchange.request, exchange.decided.cascade
        revision = model.revision() if cascade is None else cascade.revision
        assert isinstance(request, ChatRequest)
        if revision is None or bypass_reason(exchange.body, settings):
            return
        if (
            exchange.asked.priority
        ):  # comparing by meaning takes time of this process, which online requests need
            settings = replace(settings, mode="exact")
        tenant = exchange.principal.tenant if settings.scope == "tenant" else ""
        relays = model.kind == "upstream" if cascade is None else cascade.relays
        # An upstream's stream is replayed as it came, with or without the chunk of its usage.
        wire = f"stream {exchange.body.get('stream_options')}" if relays and request.stream else ""
        owner = (settings.scope, tenant, model.name, revision, wire)
        try:
            labels = labels_of(request, exchange.principal.tenant, model.name)
            question = read_question(exchange.body, exchange.principal.tenant, owner, labels)
        except UnicodeEncodeError:  # a lone surrogate: the provider refuses it by name
            return
        is_flagged = exchange.screening is not None and exchange.screening.is_flagged
        may_write = directives.may_write and (not is_flagged or "flagged" in settings.store)
        use = CacheUse(settings, question, may_write, self._cache.answers.now_s(), request.n or 1)
        use.is_flagged = is_flagged
        exchange.cache_use = use
        if use.is_semantic:
            use.unreadable = unreadable(question.text, self._cache.languages)
            use.guard = use.unreadable or ""
        known = exchange.meaning  # of the text before guardrails have masked it
        if use.is_semantic and (known is None or known.text != question.text):
            exchange.meaning = Meaning(question.text, self._cache.embed)
        if directives.may_read:
            await self._read(exchange, use, directives, model)
        else:
            use.outcome = "bypass"

    async def _read(
        self, exchange: Exchange, use: CacheUse, directives: CacheDirectives, model: ServedModel
    ) -> None:
        match = await self._exact_or_shared(exchange, use, directives, model)
        if match is None and exchange.answer is None:
            match = await self._similar(exchange, use, directives, model)
        if match is None:
            return
        try:
            self._use(exchange, use, match, model)
        except Unreadable:  # a store that replicas share can hold anything
            self._cache.discard(match.entry.key, match.entry.tenant)

    def _use(self, exchange: Exchange, use: CacheUse, match: Match, model: ServedModel) -> None:
        """Answer with what was found, or offer it as a draft. Raises Unreadable, and has done nothing."""
        is_draft = match.tier == "near" and use.settings.drafts and model.kind == "engine"
        if match.tier != "near":
            exchange.answer = replay(match.entry.answer)
            use.entry_key = match.entry.key
            if use.flight is not None:
                use.flight.abandon()  # those who wait find the stored answer too
            if match.tier == "semantic":
                self._sample(exchange, use, match.entry, model)
        elif is_draft:
            _add_draft(exchange, recorded_text(match.entry.answer))
        self._add_headers(exchange, use, match)
        use.outcome = "miss" if match.tier == "near" and not is_draft else match.tier
        use.guard = match.guard

    async def _exact_or_shared(
        self, exchange: Exchange, use: CacheUse, directives: CacheDirectives, model: ServedModel
    ) -> Match | None:
        """The stored answer, or `exchange.answer` from an equal request under way; else lead a flight."""
        num_joined = 0
        while True:
            match = self._fresh(await self._cache.answers.find_exact(use.question), directives)
            if match is not None or not use.may_write or num_joined == MAX_JOINS:
                return match
            flight = self._cache.flights.get(use.question.key)
            if flight is None:
                use.flight = self._cache.flights.start(use.question)
                use.flight.traceparent = exchange.asked.telemetry.traceparent
                return None
            if await self._join(exchange, use, flight, model) or flight.is_hung:
                return None
            num_joined += 1

    async def _join(self, exchange: Exchange, use: CacheUse, flight: Flight, model: ServedModel) -> bool:
        """Whether `exchange.answer` is now that of another request."""
        exchange.start_call(model)
        shared = None
        try:
            exchange.answer = shared = await flight.join()
        except TimedOut:
            if fallback_of(exchange) is None:  # else the leader may have had no other model to ask
                raise
        if shared is None:
            exchange.asked.telemetry.call_ended(CallResult())
            return False
        exchange.asked.telemetry.link(flight.traceparent)
        use.share = share_of(shared)
        use.outcome, use.entry_key = "shared", flight.key
        return True

    async def _similar(
        self, exchange: Exchange, use: CacheUse, directives: CacheDirectives, model: ServedModel
    ) -> Match | None:
        """The stored answer to a like question, or `exchange.answer` from a request under way that is one."""
        vector = await exchange.meaning.vector() if exchange.meaning is not None else None
        if vector is None or not use.is_comparable(vector, self._cache.heads):
            return None
        found = self._cache.answers.find_similar(use.question, vector, use.settings.max_error_rate)
        match = self._fresh(found, directives)
        if use.flight is not None and (match is None or match.tier == "near"):
            await self._join_equal(exchange, use, vector, model)
        return match if exchange.answer is None else None

    async def _join_equal(
        self, exchange: Exchange, use: CacheUse, vector: NDArray[float32], model: ServedModel
    ) -> None:
        """Leave the flight that this exchange leads for one that means the same, if there is one."""
        flights, answers, rate = self._cache.flights, self._cache.answers, use.settings.max_error_rate
        others = flights.others(use.question)
        equal = answers.find_equal(use.question, vector, list(others.values()), rate)
        if equal is None or use.flight is None:
            flights.announce(use.question, vector)  # it joins no other now: no circles
            return
        flight, own, use.flight = flights.of(list(others)[equal.place]), use.flight, None
        own.follow(flight)
        if await self._join(exchange, use, flight, model):
            _add_reasons(exchange, equal.similarity, equal.probability)
            self._sign(exchange, use, flight.key)

    def _sample(self, exchange: Exchange, use: CacheUse, entry: Entry, model: ServedModel) -> None:
        """Perhaps ask the model too, to learn whether the hit was right."""
        assert isinstance(exchange.request, ChatRequest)
        call = msgspec.structs.replace(exchange.model_call(exchange.request), computed=None)
        settings, key, answers = use.settings, use.question.key, self._cache.answers
        tenant = exchange.principal.tenant

        async def texts() -> tuple[str, str]:
            fresh = await model.ask_once(lambda provider: provider.chat(call))
            assert not isinstance(fresh, Embedded)
            return await whole_text(replay(entry.answer)), await whole_text(fresh)

        self._cache.sampler.consider(
            settings.verified_share,
            model.metrics_label or model.name,
            texts,
            lambda is_right: answers.judge(
                entry, key, Verdict(entry.labels.model, settings.max_error_rate, is_right, tenant)
            ),
        )

    def _fresh(self, match: Match | None, directives: CacheDirectives) -> Match | None:
        if match is None or directives.max_age_s is None:
            return match
        age_s = self._cache.answers.now_s() - match.entry.created_s
        return match if age_s <= directives.max_age_s else None

    def _add_headers(self, exchange: Exchange, use: CacheUse, match: Match) -> None:
        age_s = max(0.0, self._cache.answers.now_s() - match.entry.created_s)
        exchange.response_headers["age"] = str(int(age_s))
        if match.tier != "exact":
            _add_reasons(exchange, match.similarity, match.probability)
        if match.tier == "semantic":
            self._sign(exchange, use, match.entry.key)

    def _sign(self, exchange: Exchange, use: CacheUse, entry: bytes) -> None:
        """Name a hit by meaning, for feedback."""
        now_s = int(self._cache.answers.now_s())
        token = HitToken(entry, use.question.key, exchange.principal.tenant, now_s)
        exchange.response_headers[QUESTION_HEADER] = write_hit(token, self._keys)


def _add_reasons(exchange: Exchange, similarity: float, probability: float) -> None:
    headers = {"similarity": f"{similarity:.3f}", "probability": f"{probability:.3f}"}
    exchange.response_headers |= {f"{HEADER}-{name}": value for name, value in headers.items()}


def _add_draft(exchange: Exchange, text: str) -> None:
    """Offer `text` to our engine as OpenAI's `prediction`, unless the client gave one."""
    request = exchange.request
    assert isinstance(request, ChatRequest)
    if request.prediction is None and text:
        prediction = {"type": "content", "content": text}
        exchange.request = msgspec.structs.replace(request, prediction=prediction)
        exchange.body = {**exchange.body, "prediction": prediction}
