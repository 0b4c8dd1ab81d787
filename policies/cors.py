"""The `cors` section: web pages whose scripts may call the gateway."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

ANY_ORIGIN = "*"
Origin = Annotated[
    str,
    Meta(
        pattern=r"^(\*|[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+)$",
        max_length=256,
        description="As a browser sends it: scheme, host and port in lower case, without a path, "
        "`https://app.example.com` or `http://localhost:5173`; `*` is every page.",
    ),
]


class CorsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cross-origin requests of browsers. Pages send the API key themselves; cookies play no part."""

    origins: Annotated[
        list[Origin],
        Meta(
            description="Origins that may read answers. Their preflight requests are answered, and they may "
            "read every response header. Empty: none, and pages of other origins cannot call the gateway. "
            "`*` needs API keys, as any page could use the gateway otherwise."
        ),
    ] = []
