"""The error for a path that is not served: what was meant, in the words of the API whose client asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from starlette.routing import Match, Route
from starlette.types import Scope

from gateway.errors import ApiError, NotFound
from gateway.web.error_format import OPENAI_ERRORS, ApiFormat
from gateway.web.http_call import header

MAX_SHOWN_CHARS = 128


def format_for(scope: Scope, formats: Mapping[str, ApiFormat]) -> ApiFormat:
    """The format of the API that the path belongs to or that a header names; `formats`: by path."""
    for meant in _meant(scope["path"][:MAX_SHOWN_CHARS]):
        for path, error_format in formats.items():
            if error_format is not OPENAI_ERRORS and f"{meant}/".startswith(f"{path}/"):
                return error_format
    for error_format in formats.values():
        if error_format.client_header and header(scope, error_format.client_header):
            return error_format
    return OPENAI_ERRORS


def unknown_path(scope: Scope, routes: Sequence[Route], error_format: ApiFormat) -> ApiError:
    """The error, with a hint where a client's base URL is wrong or the path has a slash too many."""
    path = scope["path"]
    shown, hint = path[:MAX_SHOWN_CHARS] + "…", ""
    if len(path) <= MAX_SHOWN_CHARS:
        shown, hint = path, _hint(scope, routes, error_format)
    return NotFound(f"Unknown request URL: {scope['method']} {shown}.{hint}", code="unknown_url")


def _hint(scope: Scope, routes: Sequence[Route], error_format: ApiFormat) -> str:
    path = _plain(scope["path"])
    for meant in _meant(path):
        asked = {**scope, "path": meant}
        if any(route.matches(asked)[0] is not Match.NONE for route in routes):
            is_client_path = meant != path and meant.startswith("/v1/")
            return f" Did you mean {meant}?{error_format.base_url_remedy(path) if is_client_path else ''}"
    return ""


def _meant(path: str) -> list[str]:
    """What a client may have meant: with one /v1 for none or several, or without what precedes it."""
    path = _plain(path)
    bare = re.sub(r"^(/v1)+(?=/)", "", path)
    return [path, f"/v1{bare}", bare, f"/v1/{path.rpartition('/v1/')[2]}"]


def _plain(path: str) -> str:
    path = re.sub(r"/+", "/", path)
    return path if path == "/" else path.removesuffix("/")
