"""choose_model: the rules of the policies decide which model answers, and change the request."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

import msgspec

from gateway.accounting.ledger import Ledger
from gateway.auth import KeyRing
from gateway.errors import ApiError, Forbidden, NotFound, RateLimited
from gateway.exchange.exchange import Escalation, Exchange, Routed, Stage
from gateway.exchange.model_table import ModelTable
from gateway.requests.types import ChatRequest
from gateway.routing.candidates import Selected, Selection
from gateway.routing.condition_values import Facts, user_of, utc_now
from gateway.routing.conversations import conversation_of
from gateway.routing.decision_token import HEADER as DECISION_HEADER
from gateway.routing.decision_token import DecisionToken, write_token
from gateway.routing.exposed import MODEL_HEADER, REASON_HEADER, ROUTE_HEADER
from gateway.routing.request_changes import adapted, change_request
from gateway.routing.signals import PREVIOUS_MODEL, Signals
from gateway.telemetry import spans
from policies.choose import BestOf, Cascade
from policies.document import Policies
from policies.routes import Refusal, Split
from policies.routing import Choice, Routing, SignalsNeeded
from router.releases import releases_of

_BY_USER = Split(models={}, sticky="user")


class ChooseModel(Stage):
    """The stage, under one version of the policies."""

    def __init__(
        self,
        models: ModelTable,
        policies: Policies,
        clock: Callable[[], datetime] = utc_now,
        *,
        keep_tried: bool = False,
        selection: Selection | None = None,
        signals: Signals | None = None,
        ledger: Ledger | None = None,
        keys: KeyRing | None = None,
    ) -> None:
        """`keep_tried`: choices list every rule that was tried, for explanations.

        `keys` sign decisions that callers may judge; None: they may not.
        """
        self._selection = selection or Selection(models, policies)
        self._signals = signals or Signals(policies)
        self._keys = keys
        self._releases = releases_of(policies.models)
        self._models = models
        self._routing = Routing(policies)
        self._facts = Facts(models, policies, clock, ledger)
        self._keeps_tried = keep_tried
        self._is_exposed = policies.routing.expose

    async def enter(self, exchange: Exchange) -> None:
        """Fill `exchange.routed`. Raises NotFound, or the ApiError of a refusal."""
        with exchange.asked.telemetry.stage(spans.STAGE_CHOOSE_MODEL):
            choice, signals, again = await self._decide(exchange)
            refusal = choice.action.refuse if choice.action is not None else None
            if refusal is None:
                routed = await self._route(exchange, choice, signals)
            else:
                routed = Routed(choice=choice, reason=choice.reason, model=None, signals=signals)
        exchange.route(msgspec.structs.replace(routed, again=again))
        self._tell(exchange, routed)
        if refusal is not None:
            raise _refused(refusal, exchange.response_headers)
        if choice.changes:
            change_request(exchange, choice.changes)

    def _tell(self, exchange: Exchange, routed: Routed) -> None:
        """Tell the span, and the client as far as the policies say so."""
        choice, headers = routed.choice, exchange.response_headers
        if choice.route or choice.rule:
            decided = {spans.ROUTE: choice.route, spans.RULE: choice.rule, spans.REASON: routed.reason}
            exchange.asked.telemetry.annotate(decided)
        if routed.decision is not None and self._keys is not None:
            request_id, tenant = exchange.asked.request_id, exchange.principal.tenant
            now_s = int(time.time())
            token = DecisionToken(request_id, choice.place, routed.decision.model, tenant, now_s)
            headers[DECISION_HEADER] = write_token(token, self._keys)
        if self._is_exposed:
            headers[ROUTE_HEADER] = choice.route
            headers[REASON_HEADER] = routed.reason
            if routed.model is not None:
                headers[MODEL_HEADER] = routed.model.name

    async def _decide(self, exchange: Exchange) -> tuple[Choice, Mapping[str, object], Callable[[], Choice]]:
        """What the rules say, the signals that they have read, and what gives all rules that were tried."""
        name = exchange.request.model
        facts = self._facts.of(exchange, *self._routing.conditions(name))
        signals: Mapping[str, object] = {}
        try:
            choice = self._routing.decide(name, facts, keep_tried=self._keeps_tried)
        except SignalsNeeded as needed:
            signals = await self._signals.of(exchange, needed.names, needed.keys)
            facts |= signals
            choice = self._routing.decide(name, facts, keep_tried=self._keeps_tried)
        return choice, signals, partial(self._routing.decide, name, facts, keep_tried=True)

    async def _route(self, exchange: Exchange, choice: Choice, signals: Mapping[str, object]) -> Routed:
        """The model in its release, as the rules change it, with all that the decision leaves for later."""
        selected = await self._select(exchange, choice)
        target, *following = selected.models
        name, release = self._released(exchange, target)
        found = self._models.resolve(name)
        action = choice.action
        rules = None if action is None else action.cascade or action.best_of
        is_continued = selected.decision is not None or PREVIOUS_MODEL in signals
        return Routed(
            choice=choice,
            reason=", ".join(filter(None, (choice.reason, selected.why, release))),
            model=adapted(found, choice.changes),
            decision=selected.decision,
            gain=selected.gain,
            cascade=self._escalation(rules, target, following) if rules is not None and following else None,
            signals=signals,
            conversation=conversation_of(exchange) if is_continued else b"",
            candidates=selected.candidates,
        )

    def _released(self, exchange: Exchange, target: str) -> tuple[str, str]:
        """The release of a model that gets this request, and why where that is another one."""
        found = self._releases.get(target)
        if found is None:
            return target, ""
        name = found.choose(draw(exchange, Choice(f"release of {target}"), _BY_USER))
        kind = "canary" if name == found.canary else "release"
        return name, "" if name == target else f"{kind} of {target}"

    def _escalation(self, rules: Cascade | BestOf, first: str, following: Sequence[str]) -> Escalation:
        models = [self._models.resolve(name) for name in (first, *following)]
        revisions = [model.revision() for model in models]
        known = [f"{model.name}@{revision}" for model, revision in zip(models, revisions, strict=True)]
        return Escalation(
            rules,
            tuple(following),
            None if None in revisions else f"{rules} {' > '.join(known)}",
            any(model.kind == "upstream" for model in models),
        )

    async def _select(self, exchange: Exchange, choice: Choice) -> Selected:
        action = choice.action
        if action is None:
            return Selected([exchange.request.model])
        if action.split is not None:
            return self._split(action.split, draw(exchange, choice, action.split))
        if action.choose is not None:
            return await self._selection.choose(exchange, choice.place)
        if action.best_of is not None:
            return self._selection.best_of(exchange, action.best_of)
        if action.cascade is not None:
            return await self._selection.cascade(exchange, action.cascade)
        return Selected(action.targets())  # the one `model`

    def _split(self, split: Split, at: float) -> Selected:
        """The model at `at`, from 0 to below 1. One that is out is replaced; all others keep their users."""
        name = pick(split.models, at)
        if not self._is_out(name):
            return Selected([name], f"split by {split.sticky}")
        left = {each: weight for each, weight in split.models.items() if not self._is_out(each)}
        # Its users are neighbours: a large multiple spreads them over those that are left.
        other = pick(left or split.models, at * 1009 % 1.0)
        return Selected([other], f"split by {split.sticky}, {name} is out")

    def _is_out(self, name: str) -> bool:
        try:
            return self._models.resolve(name).is_out
        except NotFound:  # an adapter that has been unloaded
            return False


def pick(weights: Mapping[str, float], draw: float) -> str:
    """The name at `draw`, from 0 to below 1, of names with these weights."""
    names = list(weights)
    left = draw * sum(weights.values())
    for name in names:
        left -= weights[name]
        if left < 0:
            return name
    return names[-1]


def draw(exchange: Exchange, choice: Choice, split: Split) -> float:
    """A number from 0 to below 1 that is always the same for what the split is sticky by."""
    if split.sticky == "none":
        return random.random()
    tenant = exchange.principal.tenant
    who = ""
    if split.sticky != "tenant":
        who = user_of(exchange) if split.sticky == "user" else _conversation(exchange)
    text = "\0".join((choice.route, choice.rule, tenant, who))
    return (
        int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest()) / 2**56
    )


def _conversation(exchange: Exchange) -> str:
    """What all turns of one conversation have in common: its messages up to the first of the user."""
    request = exchange.request
    if not isinstance(request, ChatRequest):
        return ""
    roles = [message.get("role") for message in request.messages]
    end = roles.index("user") + 1 if "user" in roles else 1
    return msgspec.json.encode(request.messages[:end]).decode()


def _refused(refusal: Refusal, headers: Mapping[str, str]) -> ApiError:
    kind = {403: Forbidden.type, 429: RateLimited.type}.get(refusal.status, "invalid_request_error")
    return ApiError(
        refusal.message, status=refusal.status, type=kind, code="refused_by_policy", headers=dict(headers)
    )
