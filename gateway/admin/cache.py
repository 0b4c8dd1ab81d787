"""POST /v1/cache/invalidate and /v1/cache/feedback: forget stored answers, or judge one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from cache.entry import Entry, Selector, SelectorKind
from cache.evidence import Verdict
from cache.semantic_cache import SemanticCache, StoreUnavailable
from gateway.accounting.counters import DAY_S, Counters
from gateway.admin.feedback import JUDGED_FOR_S
from gateway.auth import KeyRing, Principal
from gateway.errors import Forbidden, InvalidRequest, NotFound, Unavailable
from gateway.exchange.model_table import ModelTable
from gateway.exchange.shape import encode
from gateway.requests.parse import decode_body, typed
from gateway.response_cache.hit_token import HitToken, read_hit
from gateway.response_cache.sampling import Verdict as SampledVerdict
from gateway.response_cache.settings import CacheSettings
from gateway.response_cache.use import user_digest
from gateway.web.http_call import HttpCall

Value = Annotated[str, Meta(min_length=1, max_length=512)]
BodyT = TypeVar("BodyT", bound=msgspec.Struct)
KINDS: tuple[SelectorKind, ...] = get_args(SelectorKind)


class InvalidateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to forget; exactly one of the first five."""

    tenant: Value | None = None
    model: Value | None = None
    tag: Value | None = None
    user: Value | None = None  # as in the requests' `safety_identifier` or `user`
    entry: Value | None = None  # as in the header `x-penstock-cache-entry`
    all_tenants: bool = False  # for operators: entries of every tenant


class FeedbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a stored answer was right."""

    entry: Value  # as in the header `x-penstock-cache-entry`
    verdict: Literal["right", "wrong"]
    question: Value | None = None  # as in the header `x-penstock-cache-question` of a semantic hit


class CacheAccess:
    """Who may change which entries: those of its own tenant, or any for operators."""

    def __init__(
        self, keys: KeyRing, operators: Sequence[str], max_body_bytes: int, *, reaches_all: bool
    ) -> None:
        """`reaches_all`: False where other workers have entries of their own, which nothing connects."""
        self._keys = keys
        self._operators = operators
        self._max_body_bytes = max_body_bytes
        self._reaches_all = reaches_all

    async def read(self, call: HttpCall, kind: type[BodyT]) -> tuple[Principal, BodyT]:
        """The caller and the body. Raises ApiError."""
        principal = self._keys.identify(call.authorization)
        body = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), kind)
        if not self._reaches_all:
            raise InvalidRequest(
                "Each of several workers keeps entries of its own: set `cache.redis` in the policies, or run "
                "one worker.",
                code="cache_not_shared",
            )
        return principal, body

    def hit(self, question: str) -> HitToken | None:
        """The hit of a header `x-penstock-cache-question`; None for what is none."""
        return read_hit(question, self._keys)

    def may_change(self, principal: Principal, tenant: str | None) -> bool:
        """`tenant` None: of every tenant."""
        return tenant == principal.tenant or principal.tenant in self._operators


class InvalidationEndpoint:
    """Forgets entries."""

    def __init__(self, access: CacheAccess, answers: SemanticCache) -> None:
        self._access = access
        self._answers = answers

    async def invalidate(self, call: HttpCall) -> None:
        """Forget what the body selects."""
        principal, request = await self._access.read(call, InvalidateRequest)
        try:
            found = await self._answers.forget(self._selector(request, principal))
        except StoreUnavailable as failure:
            raise Unavailable(
                f"This worker's entries are gone, but not those in Redis: {failure}. Send the request again."
            ) from None
        await call.respond(encode({"object": "cache.invalidation", "invalidated": found}))

    def _selector(self, request: InvalidateRequest, principal: Principal) -> Selector:
        given = [kind for kind in KINDS if getattr(request, kind) is not None]
        if len(given) != 1:
            raise InvalidRequest(f"Give exactly one of {', '.join(KINDS)}.", param=(given or list(KINDS))[-1])
        (kind,) = given
        value: str = getattr(request, kind)
        tenant = request.tenant if request.tenant is not None else principal.tenant
        if not self._access.may_change(principal, None if request.all_tenants else tenant):
            raise Forbidden(
                f"The principal {principal.tenant!r} may only invalidate entries of its own; add it to "
                "`cache.operators` in the policies."
            )
        if kind == "user":
            value = user_digest(tenant, value)
        return Selector(kind, value, None if request.all_tenants else tenant)


class FeedbackEndpoint:
    """Takes verdicts on answers from the cache."""

    def __init__(
        self,
        access: CacheAccess,
        answers: SemanticCache,
        models: ModelTable,
        counters: Counters,
        on_verdict: Callable[[str, SampledVerdict], None],
    ) -> None:
        """`on_verdict` gets the model's name and each verdict on a semantic hit; `counters` know them all."""
        self._access = access
        self._answers = answers
        self._models = models
        self._on_verdict = on_verdict
        self._counters = counters

    async def judge(self, call: HttpCall) -> None:
        """Note a verdict; an entry that is wrong for its own question is removed."""
        principal, request = await self._access.read(call, FeedbackRequest)
        key = _key(request.entry)
        hit = None if request.question is None else self._hit(request.question, key, principal)
        entry = await self._answers.entry(key)
        if entry is None or not self._access.may_change(principal, entry.tenant):
            raise NotFound("There is no such cache entry, or it is another tenant's.", param="entry")
        is_right, is_removed = request.verdict == "right", False
        if hit is not None:
            await self._claim(hit)
            model = self._models.models.get(entry.labels.model)
            settings = CacheSettings.of() if model is None or model.cache is None else model.cache
            verdict = Verdict(entry.labels.model, settings.max_error_rate, is_right, hit.tenant)
            self._answers.judge(entry, hit.question, verdict)
            self._on_verdict(entry.labels.model, request.verdict)
        elif not is_right:
            is_removed = await self._remove(entry)
        await call.respond(
            encode({"object": "cache.feedback", "entry": request.entry, "removed": is_removed})
        )

    def _hit(self, question: str, entry: bytes, principal: Principal) -> HitToken:
        hit = self._access.hit(question)
        if hit is None or hit.entry != entry or not self._access.may_change(principal, hit.tenant):
            raise InvalidRequest(
                "'question' must be the header x-penstock-cache-question of this entry's answer to you.",
                param="question",
            )
        return hit

    async def _claim(self, hit: HitToken) -> None:
        """Each question counts once, however often it was asked."""
        name = f"verdict:{hit.tenant}:{hit.entry.hex()}:{hit.question.hex()}"
        is_old = self._counters.now_s() - hit.served_s > JUDGED_FOR_S
        if is_old or not await self._counters.claim(name, JUDGED_FOR_S + DAY_S):
            raise InvalidRequest(
                "The answer to this question has been judged already, or is older than a week.",
                param="question",
                code="already_judged",
            )

    async def _remove(self, entry: Entry) -> bool:
        try:
            return bool(await self._answers.forget(Selector("entry", entry.key.hex(), entry.tenant)))
        except StoreUnavailable as failure:
            raise Unavailable(f"Redis fails: {failure}. Send the request again.") from None


def _key(entry: str) -> bytes:
    try:
        return bytes.fromhex(entry)
    except ValueError:
        what = "'entry' must be the value of the header 'x-penstock-cache-entry'."
        raise InvalidRequest(what, param="entry") from None
