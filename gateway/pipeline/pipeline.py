"""The ordered list of stages: entered one after the other, settled in reverse however an exchange ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.accounting.admission import Admission
from gateway.accounting.receipt import Receive
from gateway.auth import KeyRing
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.model_table import ModelTable
from gateway.exchange.prompt_embedding import Embed, no_meaning
from gateway.pipeline.recent_requests import RecentRequests
from gateway.pipeline.stages.account import Account
from gateway.pipeline.stages.admit import Admit
from gateway.pipeline.stages.authorize import Authorize
from gateway.pipeline.stages.call_model import CallModel
from gateway.pipeline.stages.check_fields import CheckFields
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.keep_record import KeepRecord
from gateway.pipeline.stages.learn import Learn
from gateway.pipeline.stages.listen import Listen
from gateway.pipeline.stages.look_up import LookUp
from gateway.pipeline.stages.mirror import Mirror
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.pipeline.stages.record_decision import RecordDecision
from gateway.pipeline.stages.remember import Remember
from gateway.pipeline.stages.report import Report
from gateway.pipeline.stages.reserve import Reserve
from gateway.pipeline.stages.screen_answer import ScreenAnswer
from gateway.pipeline.stages.screen_request import ScreenRequest
from gateway.response_cache.response_cache import ResponseCache
from gateway.routing.candidates import Selection
from gateway.routing.condition_values import utc_now
from gateway.routing.decision_log import DecisionLog
from gateway.routing.memory import RoutingMemory
from gateway.routing.other_models import OtherModels
from gateway.routing.signals import Signals
from gateway.screening.guards import Guards
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.asgi_endpoint import log_failure
from policies.document import Policies

NO_RULES = Policies()


def _no_telemetry() -> Telemetry:
    return Telemetry(OFF, Metrics(()))


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """What a pipeline may do without."""

    telemetry: Telemetry = field(default_factory=_no_telemetry)  # of requests that are mirrored
    log: DecisionLog | None = None  # None records no decisions
    embed: Embed = no_meaning  # what gives a text's vector, for estimates
    memory: RoutingMemory | None = None  # None: its own
    guards: Guards | None = None  # None: without an encoder
    clock: Callable[[], datetime] = utc_now  # of the rules' `time`
    receivers: Sequence[Receive] = ()  # of a receipt for each request that has ended
    recent: RecentRequests | None = None  # None: no records are kept
    keeps_tried: bool = False  # whether choices list every rule that was tried, for explanations


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
        memory, embed, log = parts.memory or RoutingMemory(), parts.embed, parts.log
        self.ledger = ledger = memory.ledger
        guards = parts.guards or Guards(policies.guardrails)
        selection = Selection(models, policies, embed, memory)
        others = OtherModels(models, policies.routing.max_attempts)
        self.signals = signals = Signals(policies, embed, memory)
        self.admission = Admission(policies, ledger)
        report = Report(parts.receivers, policies.version)
        stages: tuple[Stage, ...] = (
            KeepRecord(parts.recent, models, keeps_texts=policies.observability.decision_texts),
            Authorize(keys, policies.version),
            report,
            ReadRequest(),
            Admit(self.admission),
            Account(ledger),
            Learn(memory),
            RecordDecision(log),
            ChooseModel(
                *(models, policies, parts.clock),
                keep_tried=parts.keeps_tried,
                selection=selection,
                signals=signals,
                ledger=ledger,
                keys=keys,
            ),
            CheckFields(),
            ScreenRequest(guards, others),
            LookUp(cache, keys),
            Mirror(models, parts.telemetry, memory, log, embed),
            Reserve(self.admission, others, memory, policies.routing.reserve_tokens),
            CallModel(others),
            Listen(),
            Remember(cache),
            ScreenAnswer(),
        )
        self._choosing = [stage for stage in _until(CheckFields, stages) if not stage.is_for_calls]
        self._deciding = _until(ScreenRequest, stages[stages.index(report) + 1 :])
        # Those that the policies leave nothing to do cost requests nothing.
        has_shadows = any(action.shadow is not None for _, action in policies.actions())
        idle = {Mirror: not has_shadows, Listen: not has_shadows, ScreenAnswer: guards.is_empty}
        idle[KeepRecord] = parts.recent is None
        self.stages = tuple(stage for stage in stages if not idle.get(type(stage)))
        self._noting = [stage for stage in self.stages if isinstance(stage, KeepRecord | Report)]

    async def run(self, exchange: Exchange) -> None:
        """Enter the stages in order, up to `exchange.answer`. Raises what a stage raises."""
        await _enter(self.stages, exchange)

    async def note(self, exchange: Exchange) -> None:
        """Enter the stages that tell of a request which no other one knows."""
        await _enter(self._noting, exchange)

    async def choose(self, exchange: Exchange) -> None:
        """Enter the stages up to `exchange.model`, for requests that call none. Raises as `run` does."""
        await _enter(self._choosing, exchange)

    async def decide(self, exchange: Exchange) -> None:
        """Enter the stages up to the guardrails, for a principal that is known. Raises as `run` does."""
        await _enter(self._deciding, exchange)

    def settle(self, exchange: Exchange) -> None:
        """Settle the stages that were entered, the last one first; call it however the exchange ends.

        The one that raised or was cancelled counts as entered. One that fails does not keep others from
        settling.
        """
        while exchange.entered:
            stage = exchange.entered.pop()
            try:
                stage.settle(exchange)
            except Exception as failure:  # noqa: BLE001 - what others hold must be given back
                log_failure(failure, f"{exchange.asked.request_id}, settled by {type(stage).__name__},")


async def _enter(stages: Iterable[Stage], exchange: Exchange) -> None:
    for stage in stages:
        exchange.entered.append(stage)
        await stage.enter(exchange)


def _until(last: type[Stage], stages: Sequence[Stage]) -> Sequence[Stage]:
    """The stages up to and with `last`."""
    return stages[: 1 + [type(stage) for stage in stages].index(last)]
