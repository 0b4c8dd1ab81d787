"""The ordered list of stages, and the accounting that runs however an exchange ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.auth import KeyRing
from gateway.errors import ApiError
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelTable
from gateway.exchange.prompt_embedding import Embed, no_meaning
from gateway.pipeline.stages.account import account
from gateway.pipeline.stages.admit import Admit
from gateway.pipeline.stages.authorize import authorize
from gateway.pipeline.stages.call_model import CallModel
from gateway.pipeline.stages.check_fields import check_fields
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.listen import listen
from gateway.pipeline.stages.look_up import LookUp
from gateway.pipeline.stages.mirror import Mirror
from gateway.pipeline.stages.read_request import read_request
from gateway.pipeline.stages.remember import Remember
from gateway.pipeline.stages.screen_answer import screen_answer
from gateway.pipeline.stages.screen_request import ScreenRequest
from gateway.response_cache.response_cache import ResponseCache
from gateway.routing.candidates import Selection
from gateway.routing.decision_log import DecisionLog
from gateway.routing.memory import RoutingMemory
from gateway.routing.signals import Signals
from gateway.screening.guards import Guards
from gateway.telemetry.request import Telemetry
from policies.document import Policies

NO_RULES = Policies()
Stage = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """What a pipeline may do without."""

    telemetry: Telemetry | None = None  # for requests that are mirrored; None: none are
    log: DecisionLog | None = None  # None records no decisions
    embed: Embed = no_meaning  # what gives a text's vector, for estimates
    memory: RoutingMemory | None = None  # None: its own
    guards: Guards | None = None  # None: without an encoder


class Pipeline:
    """Takes an exchange from its headers to an answer. A stage refuses by raising an ApiError."""

    def __init__(
        self,
        keys: KeyRing,
        models: ModelTable,
        cache: ResponseCache,
        policies: Policies = NO_RULES,
        parts: PipelineParts = PipelineParts(),
    ) -> None:
        self._log = log = parts.log
        self._cache = cache
        self._memory = parts.memory or RoutingMemory()
        selection = Selection(models, policies, parts.embed, self._memory)
        self.signals = Signals(policies, parts.embed, self._memory)
        self._ledger = self._memory.ledger
        self.admit = Admit(policies, self._ledger)
        known: tuple[Stage, ...] = (authorize(keys, policies.version), read_request)
        telemetry, embed = parts.telemetry, parts.embed
        call = CallModel(models, policies.routing.max_attempts, policies.guardrails.profiles)
        choose = ChooseModel(
            models, policies, selection=selection, signals=self.signals, ledger=self._ledger, keys=keys
        )
        self._choosing: tuple[Stage, ...] = (*known, choose, check_fields)
        self.stages: tuple[Stage, ...] = (
            *known,
            self.admit,
            *(() if log is None else (log.note,)),
            choose,
            check_fields,
            _screen(ScreenRequest(parts.guards or Guards(policies.guardrails)), call),
            LookUp(cache, keys),
            *(() if telemetry is None else (Mirror(models, telemetry, self._ledger, log, embed),)),
            call,
            listen,
            Remember(cache),
            screen_answer,
        )

    async def run(self, exchange: Exchange) -> None:
        """Run the stages in order, up to `exchange.answer`. Raises what a stage raises."""
        for stage in self.stages:
            await stage(exchange)

    async def choose(self, exchange: Exchange) -> None:
        """Run the stages up to `exchange.model`, for requests that call none. Raises what a stage raises."""
        for stage in self._choosing:
            await stage(exchange)

    def settle(self, exchange: Exchange) -> None:
        """Account for an exchange that has succeeded or failed: called exactly once for each."""
        use, screening = exchange.cache_use, exchange.screening
        if use is not None:
            is_flagged = screening is not None and (screening.is_flagged or screening.is_blocked)
            self._cache.settle(use, is_flagged=is_flagged)
        account(exchange, self._ledger)
        self.admit.release(exchange)
        if exchange.sent_text is not None and not exchange.sent_text.done():
            exchange.sent_text.cancel()  # there is nothing to compare with
        self._memory.learn(exchange)
        if self._log is not None:
            self._log.record(exchange)


def _screen(screen: ScreenRequest, call: CallModel) -> Stage:
    """The stage, again for the model of `fallback.refused` where the guardrails of the first one refuse."""

    async def stage(exchange: Exchange) -> None:
        while True:
            try:
                return await screen(exchange)
            except ApiError as error:
                if not call.replaces_refusing(exchange, error):
                    raise

    return stage
