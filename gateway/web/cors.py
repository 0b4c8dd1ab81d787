"""CORS for the origins that the policies name."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
MAX_AGE_S = 600
"""How long a browser keeps a preflight's answer."""


def cors_middleware(origins: Sequence[str]) -> list[Middleware]:
    """What answers preflight requests and marks responses for these origins; nothing for none.

    Without credentials (cookies), so `*` in the exposed headers means all of them.
    """
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=("*",),
            expose_headers=("*",),
            max_age=MAX_AGE_S,
        )
    ]
