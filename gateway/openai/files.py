"""/v1/files: a tenant's stored files."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.datastructures import UploadFile

from gateway.auth import KeyRing
from gateway.batches.files import FileStore
from gateway.errors import BodyTooLarge
from gateway.exchange.shape import encode
from gateway.requests import refusals
from gateway.requests.pages import PageQuery, listing
from gateway.requests.parse import typed_at
from gateway.web.http_call import HttpCall
from gateway.web.multipart import check_origin, read_form
from policies.batches import BatchesSection

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MAX_FILENAME_CHARS = 255
MAX_LIMIT = 10_000
_PIECE_BYTES = 256 * 1024
_FIELDS = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a file is erased."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=30 * 86400)]


class FilesEndpoint:
    """Uploads, listing, content and deletion."""

    def __init__(self, keys: KeyRing, files: FileStore, policy: BatchesSection) -> None:
        self._keys = keys
        self._files = files
        self._policy = policy

    async def upload(self, call: HttpCall) -> None:
        """Store the form's file. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        check_origin(call, self._keys)
        max_bytes = self._policy.max_file_bytes
        length = call.read_header("content-length")
        num_bytes = min(int(length[:18]), max_bytes) if length.isascii() and length.isdigit() else max_bytes
        async with (
            self._files.arriving(tenant, num_bytes, self._policy),
            read_form(call, max_bytes) as form,
        ):
            file, purpose, ttl_s = self._read(form)
            if (file.size or 0) > max_bytes:
                raise BodyTooLarge(f"The file is larger than {max_bytes} bytes: split it.")
            name = (file.filename or "upload")[:MAX_FILENAME_CHARS]
            stored = await self._files.add(tenant, purpose, name, file.file, ttl_s, self._policy)
        await call.respond(encode(stored))

    def _read(self, form: dict[str, str | UploadFile]) -> tuple[UploadFile, str, int]:
        for name in form:
            if name not in _FIELDS:
                raise refusals.unknown_field(name, _FIELDS)
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise refusals.missing("file")
        if purpose is None:
            raise refusals.missing("purpose")
        if not isinstance(purpose, str) or purpose not in PURPOSES:
            raise refusals.wrong_value("purpose", f"expected one of {', '.join(PURPOSES)}", purpose)
        expiry: dict[str, object] = {
            name[len("expires_after[") : -1]: value for name, value in form.items() if "[" in name
        }
        if not expiry:
            return file, purpose, self._policy.ttl_s
        seconds = expiry.get("seconds")
        if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit():
            expiry["seconds"] = int(seconds[:12])
        return file, purpose, typed_at(expiry, ExpiresAfter, "expires_after").seconds

    async def list(self, call: HttpCall) -> None:
        """A page: `purpose`, `limit`, `order` (default: desc), `after`. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        query = PageQuery.read(call.query, MAX_LIMIT, MAX_LIMIT)
        files, has_more = await self._files.page(tenant, call.query.get("purpose", ""), query)
        await call.respond(encode(listing(files, has_more=has_more)))

    async def show(self, call: HttpCall) -> None:
        """The file without its content. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        await call.respond(encode(await self._files.get(call.path_id, tenant)))

    async def content(self, call: HttpCall) -> None:
        """The file's bytes. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        file = await self._files.get(call.path_id, tenant)
        with self._files.path(file.id).open("rb") as content:
            await call.start_body(
                {"content-type": "application/octet-stream", "content-length": str(file.bytes)}
            )
            while piece := await asyncio.to_thread(content.read, _PIECE_BYTES):
                await call.write(piece)
            await call.end_stream()

    async def delete(self, call: HttpCall) -> None:
        """Erase the file. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        await self._files.delete(call.path_id, tenant)
        await call.respond(encode({"id": call.path_id, "object": "file", "deleted": True}))
