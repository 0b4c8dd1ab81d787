"""/console/ and /docs: the files of `static/`, as they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gateway.errors import NotFound
from gateway.web.http_call import HttpCall, etag_of

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked again with the ETag, so a new version shows at once
}


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Content and ETag by name."""
    found = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in MEDIA_TYPES}
    return {name: (data, etag_of(data)) for name, data in found.items()}


async def redirect(call: HttpCall) -> None:
    """/console → /console/, so that the page's relative links hold behind a proxy's prefix, too."""
    await call.respond(b"", MEDIA_TYPES[".html"], status=308, headers={**HEADERS, "location": "console/"})


async def show_console(call: HttpCall) -> None:
    """The page."""
    await _send(call, "index.html")


async def show_docs(call: HttpCall) -> None:
    """The page over /openapi.json."""
    await _send(call, "docs.html")


async def show_file(call: HttpCall) -> None:
    """A script or style of the page. Raises NotFound."""
    await _send(call, call.scope["path_params"]["name"])


async def _send(call: HttpCall, name: str) -> None:
    if name not in _files():
        raise NotFound("The console has no such file: begin at /console/.")
    data, etag = _files()[name]
    await call.respond_known(data, etag, MEDIA_TYPES[Path(name).suffix], headers=HEADERS)
