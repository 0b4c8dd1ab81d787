"""/v1/batches: files of requests that are answered in the background."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.auth import KeyRing
from gateway.batches.records import BATCH_ENDPOINTS, COMPLETION_WINDOWS_S
from gateway.batches.store import BatchStore
from gateway.exchange.shape import encode
from gateway.openai.files import ExpiresAfter
from gateway.requests import refusals
from gateway.requests.pages import PageQuery, listing
from gateway.requests.parse import decode_body, typed
from gateway.requests.types import Metadata
from gateway.web.http_call import HttpCall
from policies.batches import BatchesSection

MAX_BODY_BYTES = 64 * 1024


class CreateBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchesEndpoint:
    """What a tenant may do with its batches."""

    def __init__(
        self, keys: KeyRing, store: BatchStore, policy: BatchesSection, on_create: Callable[[], None]
    ) -> None:
        """`on_create` is called after a batch has been stored."""
        self._keys = keys
        self._store = store
        self._policy = policy
        self._on_create = on_create

    async def create(self, call: HttpCall) -> None:
        """A new batch; its file is checked in the background. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        request = typed(decode_body(await call.read_json_bytes(MAX_BODY_BYTES)), CreateBatch)
        if request.endpoint not in BATCH_ENDPOINTS:
            expected = f"expected one of {', '.join(BATCH_ENDPOINTS)}"
            raise refusals.wrong_value("endpoint", expected, request.endpoint)
        if request.completion_window not in COMPLETION_WINDOWS_S:
            raise refusals.wrong_value("completion_window", "expected '24h'", request.completion_window)
        expiry = request.output_expires_after
        batch = await self._store.add(
            tenant,
            request.endpoint,
            request.input_file_id,
            window=request.completion_window,
            metadata=request.metadata,
            output_ttl_s=self._policy.ttl_s if expiry is None else expiry.seconds,
            policy=self._policy,
        )
        self._on_create()
        await call.respond(encode(batch))

    async def list(self, call: HttpCall) -> None:
        """A page, the newest first: `limit`, `after`. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        query = PageQuery.read(call.query)
        batches, has_more = await self._store.page(tenant, query)
        await call.respond(encode(listing(batches, has_more=has_more)))

    async def show(self, call: HttpCall) -> None:
        """The batch as it is now. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        await call.respond(encode(await self._store.get(call.path_id, tenant)))

    async def cancel(self, call: HttpCall) -> None:
        """Ask no more lines; those in flight finish. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        await call.respond(encode(await self._store.cancel(call.path_id, tenant)))
