"""Whether a tenant may use a model now, by the tiers and limits of one version of the policies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import msgspec

from gateway.accounting.accounts import Settled
from gateway.accounting.counters import MINUTE_S, rest_of
from gateway.accounting.ledger import Ledger
from gateway.accounting.lines import CONCURRENT, KINDS, PER_UNIT, WINDOWS, Line, State, Verdict, wait_s
from gateway.accounting.receipt import NOTHING_CHARGED, Charged
from gateway.auth import Principal
from gateway.errors import Forbidden, InvalidRequest, RateLimited
from policies.document import Policies
from policies.tenants import Limits, Tenant, parents_of, rules_of

RETRY_S = 1
"""`retry-after` while only requests that run are in the way."""
SOFT_HEADER = "x-penstock-soft-limit"
MAX_TOLD = 200
"""Limits that `left` tells about."""
MOST = 1 << 53
"""The most that one request asks or uses of a line: stores add 64-bit numbers."""
_NONE = Limits()
_ORDER = [CONCURRENT, *(f"{kind}_per_{window}" for kind in KINDS for window in reversed(WINDOWS))]
_NAMES = {"usd": "USD", "machine_seconds": "machine seconds"}


class Cost(NamedTuple):
    """Tokens of prompts and answers, and their price."""

    tokens: float = 0.0
    usd: float = 0.0


class Admitted(msgspec.Struct, frozen=True):
    """What is counted for a request until it ends."""

    costs: Sequence[Line] = ()  # limits that its cost counts against
    held: Sequence[tuple[Line, int]] = ()  # what is set aside
    near_limit: float = 0.0  # highest share of a limit that was used when it began
    headers: Mapping[str, str] = {}  # what is left, as OpenAI's API tells it
    num_answers: int = 1


NOT_LIMITED = Admitted()


class Admission:
    """What runs is counted in the ledger's accounts, which all versions of the policies share."""

    def __init__(self, policies: Policies, ledger: Ledger) -> None:
        self._policies = policies
        self._ledger = ledger
        self._rules: dict[str, Tenant] = {}  # of tenants that have asked
        self._own: dict[str, Sequence[Line]] = {}  # theirs, and their parents'
        self._has_costs: dict[str, bool] = {}  # whether one of their limits is of what answers cost

    async def enter(
        self,
        principal: Principal,
        model: str | None = None,
        num_answers: int = 1,
        *,
        user: str = "",
        is_admitted: bool = False,
        span: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> Admitted:
        """Count a request as running, once for each of its answers.

        `user`: a digest of the end user that it names. `is_admitted`: it has been counted before, all but its
        cost. `span` is entered while limits are asked. Raises RateLimited, Forbidden for a model that is not
        the tenant's, InvalidRequest for more answers than may ever run, and Unavailable where nothing is
        admitted that cannot be counted.
        """
        tenant = principal.tenant
        rules = self._rules_of(tenant)
        if not is_admitted and model is not None and rules.models is not None and model not in rules.models:
            may = ", ".join(rules.models) or "none"
            raise Forbidden(
                f"The model {model[:128]!r} is not for {tenant!r}, which may ask for: {may}.",
                param="model",
                code="model_not_allowed",
            )
        lines = [*self._own[tenant], *_others(rules, principal, user)]
        if not lines:
            return NOT_LIMITED
        costs = [line for line in lines if _is_cost(line)]
        if is_admitted:
            return Admitted(costs)
        asked = [_asking(line, num_answers) for line in lines]
        _check_answers(asked, num_answers)
        with span("admit"):
            verdict = await self._reserve(asked)
        held = _held(asked, verdict)
        marks = _soft_marks(asked, verdict.states)
        near = max(map(_share, asked, verdict.states))
        headers = _left_headers(asked, verdict.states, self._ledger.counters.now_s())
        return Admitted(costs, held, near, headers | marks, num_answers)

    def limits_cost(self, tenant: str) -> bool:
        """Whether what answers cost, or a model's calls, are limited for the tenant."""
        self._rules_of(tenant)
        return self._has_costs[tenant]

    async def reserve(
        self, admitted: Admitted, tenant: str, model: str, highest: Cost, *, is_bounded: bool
    ) -> Admitted:
        """Set aside what a request may cost at most, and count it as a call of its model.

        `is_bounded`: the request says how long its answer may be. Else, with nothing beside it, it gets
        what is left. Raises RateLimited where there is too little, and Unavailable.
        """
        per_model = self._rules_of(tenant).limits_per_model.get(model, Limits())
        of_model = list(_lines(f"model:{tenant}:{model}", per_model))
        asked = [
            line._replace(asked=_asks(line.kind, getattr(highest, line.kind, 0)), is_bounded=is_bounded)
            if _is_cost(line)
            else _asking(line, admitted.num_answers)
            for line in [*admitted.costs, *of_model]
        ]
        if not asked:
            return admitted
        held = _held(asked, await self._reserve(asked))
        costs = [*admitted.costs, *filter(_is_cost, of_model)]
        return msgspec.structs.replace(admitted, costs=costs, held=[*admitted.held, *held])

    def settle(self, admitted: Admitted, charged: Charged = NOTHING_CHARGED) -> None:
        """Give back what was set aside, and count what was used instead."""
        if admitted is NOT_LIMITED:
            return
        usage = charged.usage
        used = {
            "tokens": usage.prompt_tokens + usage.completion_tokens,
            "usd": _asks("usd", charged.usd),
            "machine_seconds": _asks("machine_seconds", usage.machine_seconds),
        }
        ended = [Settled(line, amount, 0) for line, amount in admitted.held]
        ended += [Settled(line, 0, used[line.kind]) for line in admitted.costs if used[line.kind]]
        if ended:
            self._ledger.accounts.settle(ended)

    async def left(self, principals: Iterable[Principal]) -> list[dict[str, object]]:
        """What is used and left of the limits of these tenants, keys and their models: MAX_TOLD at most."""
        lines: dict[str, Line] = {}
        for number, principal in enumerate(principals):
            if len(lines) >= MAX_TOLD:
                break
            if not number % 100:
                await asyncio.sleep(0)  # of ten thousand tenants without limits all rules are made
            rules = self._rules_of(principal.tenant)
            found = [*self._own[principal.tenant], *_others(rules, principal, "")]
            for model, limits in rules.limits_per_model.items():
                found += _lines(f"model:{principal.tenant}:{model}", limits)
            lines |= {line.name: line for line in found if line.limit is not None}
        asked = list(lines.values())[:MAX_TOLD]  # for nothing: it is only told
        states = (await self._ledger.accounts.reserve(asked)).states if asked else []
        now_s = self._ledger.counters.now_s()
        return [_told_left(line, state, now_s) for line, state in zip(asked, states, strict=True)]

    async def _reserve(self, asked: Sequence[Line]) -> Verdict:
        """The verdict that grants all. Raises RateLimited for the first limit that has too little."""
        verdict = await self._ledger.accounts.reserve(asked)
        if verdict.refused >= 0:
            raise self._refusal(asked, verdict)
        return verdict

    def _refusal(self, asked: Sequence[Line], verdict: Verdict) -> RateLimited:
        line = asked[verdict.refused]
        self._ledger.on_refusal(line.scope.split(":")[1], line.field)
        code = "budget_exceeded" if line.kind == "usd" else "rate_limit_exceeded"
        if line.is_bounded and line.limit is not None and line.asked > line.limit:
            cost = f"{line.asked / PER_UNIT.get(line.kind, 1):.15g} {_NAMES.get(line.kind, line.kind)}"
            return RateLimited(
                f"This request may cost {cost}, more than the limit of {_told(line)}. Send a smaller "
                "max_tokens, n or prompt.",
                code=code,
            )
        retry_s, now_s = RETRY_S, self._ledger.counters.now_s()
        if line.window_s == MINUTE_S and not verdict.waits:
            present = self._ledger.counters.total(line.name, MINUTE_S)
            retry_s = max(RETRY_S, wait_s(line, verdict.states[verdict.refused].used, present, now_s))
        elif line.window_s and not verdict.waits:
            retry_s = rest_of(line.window_s, now_s)
        headers = {"retry-after": str(retry_s), **_left_headers(asked, verdict.states, now_s)}
        message = f"The limit of {_told(line)} is reached. Try again in {retry_s} s."
        return RateLimited(message, code=code, headers=headers)

    def _rules_of(self, tenant: str) -> Tenant:
        if (known := self._rules.get(tenant)) is not None:
            return known
        tenants, tiers = self._policies.tenants, self._policies.tiers
        rules = self._rules[tenant] = rules_of(tenant, tenants, tiers)
        own = list(_lines(f"tenant:{tenant}", rules.limits, rules.soft_limits))
        for parent in parents_of(tenant, tenants):
            own += _lines(f"tenant:{parent}", rules_of(parent, tenants, tiers).limits)
        self._own[tenant] = own
        others = [*_lines("", rules.limits_per_key), *_lines("", rules.limits_per_user)]
        self._has_costs[tenant] = bool(rules.limits_per_model) or any(map(_is_cost, [*own, *others]))
        return rules


def _is_cost(line: Line) -> bool:
    return line.kind not in ("requests", CONCURRENT)


def _lines(scope: str, limits: Limits, soft: Limits = _NONE) -> Iterator[Line]:
    """Lines of all that are set; a refusal by a long window says best when a request may fit."""
    hard, marked = limits.given, soft.given
    for field in sorted({**hard, **marked}, key=_ORDER.index):
        line = Line(field, scope, None, None)
        bounds = [_whole(line.kind, each[field]) if field in each else None for each in (hard, marked)]
        yield line._replace(limit=bounds[0], soft=bounds[1])


def _others(rules: Tenant, principal: Principal, user: str) -> Iterator[Line]:
    """Lines of the key and of the end user."""
    if principal.key_id and rules.limits_per_key != _NONE:
        yield from _lines(f"key:{principal.tenant}:{principal.key_id}", rules.limits_per_key)
    if user and rules.limits_per_user != _NONE:
        yield from _lines(f"user:{principal.tenant}:{user[:16]}", rules.limits_per_user)


def _whole(kind: str, amount: float) -> int:
    return round(min(amount * PER_UNIT.get(kind, 1), float(1 << 62)))  # a limit may be infinite


def _asks(kind: str, amount: float) -> int:
    return min(_whole(kind, amount), MOST)


def _asking(line: Line, num_answers: int) -> Line:
    asked = {"requests": 1, CONCURRENT: num_answers}.get(line.kind, 0)
    return line._replace(asked=asked) if asked else line


def _held(asked: Sequence[Line], verdict: Verdict) -> list[tuple[Line, int]]:
    granted = zip(asked, verdict.granted, strict=True)
    return [(line, amount) for line, amount in granted if amount and not line.is_counted_at_once]


def _check_answers(asked: Sequence[Line], num_answers: int) -> None:
    most = min((line.limit for line in asked if line.kind == CONCURRENT and line.limit), default=num_answers)
    if num_answers > most:
        raise InvalidRequest(
            f"'n' asks for {num_answers} answers at the same time, counting every prompt; the limit is "
            f"{most}. Send a smaller n, or fewer prompts.",
            param="n",
            code="invalid_value",
        )


def _share(line: Line, state: State) -> float:
    bounds = [bound for bound in (line.limit, line.soft) if bound is not None]
    return (state.used + state.held) / min(bounds)


def _told(line: Line, bound: int | None = None) -> str:
    """The limit in words, such as `8 USD per day of each key`."""
    amount = (bound or line.limit or 0) / PER_UNIT.get(line.kind, 1)
    kind, of = line.scope.split(":")[0], ""
    if kind == "model":
        of = f" of the model {line.scope.split(':', 2)[2]!r}"
    elif kind != "tenant":
        of = f" of each {kind}"
    if line.kind == CONCURRENT:
        return f"{amount:g} requests at the same time{of}"
    unit = _NAMES.get(line.kind, line.kind)
    return f"{amount:.15g} {unit} per {line.field.rpartition('_')[2]}{of}"


def _told_left(line: Line, state: State, now_s: float) -> dict[str, object]:
    kind, tenant, *of = line.scope.split(":", 2)
    unit, limit = PER_UNIT.get(line.kind, 1), line.limit or 0
    used = state.used + state.held
    return {
        "tenant": tenant,
        "of": "" if kind == "tenant" else f"{kind} {of[0]}",
        "limit": line.field,
        "amount": limit / unit,
        "used": used / unit,
        "left": max(0, limit - used) / unit,
        "resets_in_s": rest_of(line.window_s, now_s) if line.window_s else None,
    }


def _soft_marks(asked: Sequence[Line], states: Sequence[State]) -> dict[str, str]:
    passed = [
        _told(line, line.soft)
        for line, state in zip(asked, states, strict=True)
        if line.soft is not None and state.used + state.held >= line.soft
    ]
    return {SOFT_HEADER: ", ".join(passed)} if passed else {}


def _left_headers(asked: Sequence[Line], states: Sequence[State], now_s: float) -> dict[str, str]:
    """What is left of the tightest limits per minute."""
    headers: dict[str, str] = {}
    for kind in ("requests", "tokens"):
        found = [
            (max(0, line.limit - state.used - state.held - (kind == "requests")), line.limit)
            for line, state in zip(asked, states, strict=True)
            if line.kind == kind and line.window_s == MINUTE_S and line.limit is not None
        ]
        if found:
            left, limit = min(found)
            headers[f"x-ratelimit-limit-{kind}"] = str(limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(left)
            headers[f"x-ratelimit-reset-{kind}"] = f"{rest_of(MINUTE_S, now_s)}s"
    return headers
