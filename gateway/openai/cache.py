"""POST /v1/cache/invalidate: forget stored answers, with their number as a receipt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from cache.entry import Selector, SelectorKind
from cache.errors import StoreUnavailable
from cache.semantic_cache import SemanticCache
from gateway.auth import KeyRing, Principal
from gateway.errors import Forbidden, InvalidRequest, Unavailable
from gateway.openai.shape import encode
from gateway.requests.parse import decode_body, typed
from gateway.response_cache.use import user_digest
from gateway.web.http_call import HttpCall

Value = Annotated[str, Meta(min_length=1, max_length=512)]
KINDS: tuple[SelectorKind, ...] = get_args(SelectorKind)


class InvalidateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to forget; exactly one of the first five."""

    tenant: Value | None = None
    model: Value | None = None
    tag: Value | None = None
    user: Value | None = None  # as in the requests' `safety_identifier` or `user`
    entry: Value | None = None  # as in the header `x-penstock-cache-entry`
    all_tenants: bool = False  # for operators: entries of every tenant


class CacheEndpoint:
    """Forgets entries of the caller's tenant; operators may name another one, or all."""

    def __init__(
        self,
        keys: KeyRing,
        answers: SemanticCache,
        operators: Sequence[str],
        max_body_bytes: int,
        *,
        reaches_all: bool,
    ) -> None:
        """`reaches_all`: False where other workers have entries of their own, which nothing connects."""
        self._keys = keys
        self._answers = answers
        self._operators = operators
        self._max_body_bytes = max_body_bytes
        self._reaches_all = reaches_all

    async def invalidate(self, call: HttpCall) -> None:
        """Forget what the body selects."""
        principal = self._keys.identify(call.authorization)
        request = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), InvalidateRequest)
        if not self._reaches_all:
            raise InvalidRequest(
                "Each of several workers keeps entries of its own: set `cache.redis` in the policies, or run "
                "one worker, to invalidate them.",
                code="cache_not_shared",
            )
        try:
            found = await self._answers.forget(self._selector(request, principal))
        except StoreUnavailable:
            raise Unavailable(
                "This worker's entries are gone, but Redis does not answer: send the request again."
            ) from None
        await call.respond(encode({"object": "cache.invalidation", "invalidated": found}))

    def _selector(self, request: InvalidateRequest, principal: Principal) -> Selector:
        given = [kind for kind in KINDS if getattr(request, kind) is not None]
        if len(given) != 1:
            raise InvalidRequest(f"Give exactly one of {', '.join(KINDS)}.", param=(given or list(KINDS))[-1])
        (kind,) = given
        value: str = getattr(request, kind)
        tenant = request.tenant if request.tenant is not None else principal.tenant
        if (request.all_tenants or tenant != principal.tenant) and principal.tenant not in self._operators:
            raise Forbidden(
                f"The principal {principal.tenant!r} may only invalidate entries of its own; add it to "
                "`cache.operators` in the policies."
            )
        if kind == "user":
            value = user_digest(tenant, value)
        return Selector(kind, value, None if request.all_tenants else tenant)
