"""How one API writes its errors: the body of a response, and the last event of a stream that failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from gateway.errors import ApiError, error_body, error_event


class ErrorFormat(Protocol):
    """Encodes errors for one API."""

    request_id_header: bytes
    """The header that carries the request id, beside `x-request-id`; b"" for none."""

    def body(self, error: ApiError, request_id: str) -> bytes:
        """The body of an error response, JSON."""
        ...

    def event(self, error: ApiError, request_id: str) -> bytes:
        """The server-sent event that ends a stream that failed after its first byte."""
        ...


class ApiFormat(ErrorFormat, Protocol):
    """The error format of one API's endpoints, which also knows its clients."""

    client_header: bytes
    """A header that only clients of this API send; b"" for none."""

    def base_url_remedy(self, path: str) -> str:
        """What a client's base_url must be when it asked for this unknown path: a sentence after a space."""
        ...


class OpenAIErrors:
    """OpenAI's: `{"error": {message, type, param, code}}`."""

    request_id_header = b""
    client_header = b""

    def base_url_remedy(self, path: str) -> str:
        """What a client's base_url must be: it ends in one /v1."""
        if path.startswith("/v1/v1/"):
            return " A client's base_url ends in one /v1."
        return "" if "/v1/" in path else " A client's base_url ends in /v1."

    def body(self, error: ApiError, request_id: str) -> bytes:
        """The body of an error response, JSON."""
        return error_body(error)

    def event(self, error: ApiError, request_id: str) -> bytes:
        """The event that ends a stream that failed."""
        return error_event(error)


OPENAI_ERRORS = OpenAIErrors()


class RenamedErrors:
    """Errors of a request that was translated, in the words of the API that was called."""

    def __init__(self, given: ErrorFormat, names: Sequence[tuple[str, str]]) -> None:
        """`names`: expressions that match fields of the translation, in quotes or not, and replacements."""
        self._given = given
        self._names = names
        self.request_id_header = given.request_id_header

    def body(self, error: ApiError, request_id: str) -> bytes:
        """The body of an error response, with fields renamed."""
        return self._given.body(self._renamed(error), request_id)

    def event(self, error: ApiError, request_id: str) -> bytes:
        """The event that ends a stream that failed, with fields renamed."""
        return self._given.event(self._renamed(error), request_id)

    def _renamed(self, error: ApiError) -> ApiError:
        if error.code == "unknown_parameter":  # of the request itself
            return error
        message = error.message
        for name, replacement in self._names:
            message = re.sub(name, replacement, message)
        return ApiError(
            message,
            param=None if error.param is None else renamed(error.param, self._names),
            code=error.code,
            type=error.type,
            status=error.status,
            headers=error.headers,
        )


def renamed(field: str, names: Sequence[tuple[str, str]]) -> str:
    """A field of the translation, as the API that was called has it."""
    shown = f"'{field}'"
    for name, replacement in names:
        shown = re.sub(name, replacement, shown)
    return shown[1:-1]
