"""Request bodies of the type multipart/form-data."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from gateway.auth import KeyRing
from gateway.errors import Forbidden, InvalidRequest
from gateway.web.http_call import HttpCall

MAX_FORM_BYTES = 64 * 1024
"""Size of the other fields and the framing, beside the file."""
MAX_FIELDS = 32


def check_origin(call: HttpCall, keys: KeyRing) -> None:
    """Raise Forbidden for a web page's request where no key protects the gateway.

    CSRF: browsers send forms, and other bodies that are not JSON, to any origin without asking first.
    """
    if keys.is_open and call.read_header("origin"):
        raise Forbidden("Web pages can do this only on a gateway with API keys: start it with one.")


@contextlib.asynccontextmanager
async def read_form(call: HttpCall, max_file_bytes: int) -> AsyncIterator[dict[str, str | UploadFile]]:
    """The fields of a form with one file, which is in a temporary file; of a repeated field the last.

    Raises InvalidRequest (415: not such a form), BodyTooLarge or ClientGone.
    """
    kind = call.read_header("content-type").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise InvalidRequest(
            f"Unsupported content type {kind[:64]!r}: send 'multipart/form-data'.",
            status=415,
            code="unsupported_media_type",
        )
    pieces = call.body_pieces(max_file_bytes + MAX_FORM_BYTES)
    headers = Headers(raw=call.scope["headers"])
    parser = MultiPartParser(
        headers, pieces, max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FORM_BYTES
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"The form cannot be read: {error.message}", code="invalid_form") from None
    finally:
        await pieces.aclose()
    try:
        yield dict(form.multi_items())
    finally:
        await form.close()
