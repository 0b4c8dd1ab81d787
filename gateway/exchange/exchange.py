"""The object that travels through the pipeline: what was asked, by whom, and how it was answered."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import takewhile
from typing import Any, ClassVar

import msgspec

from gateway.accounting.admission import NOT_LIMITED, Admitted
from gateway.accounting.receipt import NOTHING_CHARGED, Charged
from gateway.answer import Answer, Usage
from gateway.auth import ANONYMOUS, InternalCaller, Principal
from gateway.errors import ApiError, InvalidRequest
from gateway.exchange.endpoint import Ask, Endpoint
from gateway.exchange.model_table import ServedModel
from gateway.exchange.prompt_embedding import Meaning
from gateway.fleet.fleet import Patience
from gateway.providers.base import Deaths, ModelCall, RequestT
from gateway.requests.types import ChatRequest, ModelRequest
from gateway.response_cache.use import CacheUse
from gateway.telemetry import spans
from gateway.telemetry.request import RequestTelemetry
from gateway.web.deadlines import Deadlines
from guardrails.screen.screening import Screening
from policies.choose import BestOf, Cascade
from policies.retries import NO_RETRY
from policies.routing import Choice
from router.log import Placement
from router.strategies import Candidate, Decision

Translate = Callable[[dict[str, Any], Principal], Awaitable[dict[str, Any]]]
"""Another API's body → that of a chat."""


class NotYet(RuntimeError):
    """A stage reads a part of the exchange that no stage before it has filled."""

    def __init__(self, name: str, stage: str) -> None:
        super().__init__(f"exchange.{name} is read before {stage} has filled it")


@dataclass(frozen=True, slots=True)
class Escalation:
    """The rules of a cascade or of a best of several answers, and the models after the first one."""

    rules: Cascade | BestOf
    following: tuple[str, ...]
    revision: str | None  # of all of its models, for the cache; None while one is away
    relays: bool  # one of them is an upstream


class Asked(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What came in with a request. Comments name the stage that reads a field."""

    request_id: str  # from `x-request-id`, or generated
    endpoint: Endpoint
    telemetry: RequestTelemetry
    read_body: Callable[[], Awaitable[bytes]]  # read_request calls it once; raises BodyTooLarge or ClientGone
    deadlines: Deadlines  # call_model sets the model's limits
    authorization: str = ""  # the header's value; authorize reads it, nothing logs it
    cache_headers: tuple[str, str] = ("", "")  # `x-penstock-cache` and `cache-control`; look_up reads them
    # One of the policies' allow-listed headers; "" when the request lacks it. For choose_model.
    read_header: Callable[[str], str] = lambda name: ""
    caller: InternalCaller | None = None  # of a request that the gateway makes itself; authorize reads it
    translate: Translate | None = None  # read_request calls it; may raise ApiError
    truncates: Callable[[], bool] = lambda: False  # whether call_model may leave out the oldest turns

    @property
    def priority(self) -> int:
        """Priority of its sequences in an engine: 0, or 1 for a batch's."""
        return 0 if self.caller is None else self.caller.priority

    @property
    def is_batch(self) -> bool:
        """Whether it is a line of a batch: a price may have a factor for these."""
        return self.caller is not None and self.caller.endpoint_label == "batch"


class Routed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What choose_model has decided, once, before anything else is known of the answer."""

    choice: Choice  # what the rules of the policies say
    reason: str  # why, in words without any prompt text
    model: ServedModel | None  # None: the rules refuse the request
    decision: Decision | None = None  # what a strategy chose, where the rules say `choose`
    gain: float | None = None  # predicted, where the rules ask for it
    cascade: Escalation | None = None  # others, where the rules say `cascade` or `best_of`
    signals: Mapping[str, object] = msgspec.field(default_factory=dict)  # those that the rules have read
    conversation: bytes = b""  # identifies the messages, where later turns need to know their model
    candidates: Sequence[Candidate] = ()  # that `decision` is among
    # Gives `choice` with every rule that was tried, and the values that it saw.
    again: Callable[[], Choice] | None = None


@dataclass(slots=True, eq=False)
class Attempts:
    """What call_model has tried for one request, on all models together."""

    failed_models: list[str] = field(default_factory=list)
    deaths: Deaths = field(default_factory=Deaths)  # of engines that computed it
    placements: list[Placement] = field(default_factory=list)  # among replicas, where recorded


@dataclass(slots=True, eq=False)
class Exchange:
    """One request to a model and its answer. Comments name the stage that fills a field."""

    asked: Asked
    _: KW_ONLY
    principal: Principal = ANONYMOUS  # authorize
    body: dict[str, Any] = field(default_factory=dict)  # read_request: the one JSON parse
    # read_request: `body`, typed. Unset before that: no later stage runs without it.
    request: ModelRequest = field(init=False, repr=False)
    unknown: list[InvalidRequest] = field(
        default_factory=list
    )  # read_request: fields of a translated request
    admitted: Admitted = NOT_LIMITED  # admit, reserve: what is counted until it ends
    noted: tuple[float, dict[str, Any]] | None = None  # decision_log: time and facts, where it is on
    routed: Routed | None = None  # choose_model; what follows may take another model
    model: ServedModel | None = None  # that of `routed`; call_model replaces one that fails
    reason: str = ""  # that of `routed`; call_model adds why another model answers
    # call_model: of its models, and of calls that have failed
    rejected_usage: list[tuple[ServedModel, Usage]] = field(default_factory=list)
    rejected_text: str = ""  # call_model: of the last of them, for the next one's drafts
    sent_text: asyncio.Future[str] | None = None  # mirror: wanted; listen: of the answer, when it has ended
    attempts: Attempts = field(default_factory=Attempts)  # call_model
    meaning: Meaning | None = None  # of the last user turn; made by the first stage that asks
    screening: Screening | None = None  # screen_request, where the model has guardrails
    cache_use: CacheUse | None = None  # look_up, where the model has a cache and the request may use it
    answer: Answer | None = None  # look_up or call_model
    charged: Charged = NOTHING_CHARGED  # account: what the exchange pays for, when it has ended
    error: ApiError | None = None  # sent instead of an answer, or in the middle of one
    response_headers: dict[str, str] = field(default_factory=dict)  # stages may add some
    entered: list[Stage] = field(default_factory=list)  # pipeline: those to settle

    @property
    def usage(self) -> Usage:
        """The answer's token counts, complete when the answer has ended."""
        return Usage() if self.answer is None else self.answer.usage

    @property
    def chosen_model(self) -> ServedModel:
        """The model, for what runs after choose_model."""
        if self.model is None:
            raise NotYet("model", "choose_model")
        return self.model

    @property
    def decided(self) -> Routed:
        """What choose_model has decided, for what runs after it."""
        if self.routed is None:
            raise NotYet("routed", "choose_model")
        return self.routed

    def route(self, routed: Routed) -> None:
        """Set what choose_model has decided."""
        self.routed, self.model, self.reason = routed, routed.model, routed.reason

    def start_call(self, model: ServedModel) -> None:
        """From now on time is the model's, not the gateway's, and the model's limits apply."""
        provider = model.upstream_api if model.kind == "upstream" else spans.PROVIDER_OURS
        self.asked.telemetry.call_started(model.name, provider, self.body, model.metrics_label, model.place)
        limits = model.limits
        if self.asked.priority:  # it may wait for others for as long as the total allows
            limits = msgspec.structs.replace(limits, first_token_s=None, idle_s=None)
        self.asked.deadlines.start_model_call(limits)

    def ask(self, model: ServedModel, telemetry: RequestTelemetry) -> Awaitable[Answer]:
        """Pass the request to a model's provider, as part of the trace of `telemetry`. Raises ApiError."""
        return self.call(model, self.model_call(self.request, telemetry), self.asked.endpoint.ask, telemetry)

    async def call(
        self, model: ServedModel, call: ModelCall[RequestT], ask: Ask, telemetry: RequestTelemetry
    ) -> Answer:
        """What `ask` gets from the model's provider, after retries where the rules allow them."""
        telemetry.num_attempts += 1
        try:
            if model.fleet is None:
                return await ask(model.provider, call)

            # A shadow's failure is not worth a second call.
            retry = self.decided.choice.retry if telemetry is self.asked.telemetry else NO_RETRY
            on_answer = telemetry.answered_by if model.fleet.has_choice else None
            first_turn: tuple[bytes, bool] = (b"", False)
            more: tuple[Any, ...] = ()
            if on_answer is not None and isinstance(self.request, ChatRequest):
                first_turn = self._conversation(self.request)
            if on_answer is not None and retry is not NO_RETRY and self.decided.choice.hedge is not None:
                more = self.decided.choice.hedge, self.body.get("stream") is True, call.lost
            left_s = self.asked.deadlines.left_s
            patience = Patience(retry, left_s, telemetry.retried, *first_turn, on_answer, *more)
            return await model.fleet.ask(lambda provider: ask(provider, call), patience)
        finally:
            if call.lost and telemetry is self.asked.telemetry:
                self.rejected_usage += [(model, usage) for usage in call.lost]

    def _conversation(self, request: ChatRequest) -> tuple[bytes, bool]:
        """What identifies a chat by its first turn, which a target may have cached; whether it has others."""
        first = [*takewhile(lambda message: message.get("role") != "assistant", request.messages)]
        text = repr((self.principal.tenant, first)).encode("utf-8", "surrogatepass")
        key = hashlib.blake2b(text, digest_size=16).digest()
        return key, len(first) < len(request.messages)

    def model_call(self, request: RequestT, telemetry: RequestTelemetry | None = None) -> ModelCall[RequestT]:
        """What a provider gets; `request` is this exchange's, its type narrowed by the caller."""
        telemetry = telemetry or self.asked.telemetry
        timeline = telemetry.timeline
        return ModelCall(
            request,
            self.body,
            self.asked.request_id,
            self.principal.tenant_salt,
            telemetry.propagation(),
            self.asked.priority,
            is_translated=self.asked.endpoint.is_translated,
            clips_limit=self.asked.endpoint.clips_limit,
            deaths=self.attempts.deaths,
            placements=None if self.noted is None and timeline is None else self.attempts.placements,
            computed=None if timeline is None else timeline.computed,
        )


class Stage:
    """One step of the pipeline. A stage overrides what it needs."""

    is_for_calls: ClassVar[bool] = False
    """Whether requests that only ask which model would answer, as a count of tokens, pass it by."""

    async def enter(self, exchange: Exchange) -> None:
        """Do this step's part before the answer is sent. Raises ApiError to refuse the request."""

    def settle(self, exchange: Exchange) -> None:
        """End what `enter` began, also where it was cancelled or raised: called once, when all is over."""
