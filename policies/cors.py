"""The `cors` section: web pages whose scripts may call the gateway."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

ANY_ORIGIN = "*"
_ORIGIN = r"^(\*|[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+)$"
Origin = Annotated[
    str,
    Meta(
        pattern=_ORIGIN,
        max_length=256,
        description="As a browser sends it: scheme, host and port in lower case, without a path, "
        "`https://app.example.com` or `http://localhost:5173`; `*` is every page.",
    ),
]


def origin_remedy(text: str) -> str:
    """What to write in place of a text that is no origin."""
    scheme, separator, rest = text.strip().lower().rpartition("://")
    host = re.split("[/?#]", rest)[0].rpartition("@")[2]
    is_local = re.match(r"localhost\b|127\.|\[", host)
    found = f"{scheme if separator else 'http' if is_local else 'https'}://{host}"
    if re.fullmatch(_ORIGIN, found) and (separator or is_local or "." in host):
        return f"write {found!r}"
    return "write each in full, as https://app.example.com; `*` alone is every page"


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
