"""The `responses` section: how long responses of /v1/responses are kept."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ResponsesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stored responses, which clients retrieve and continue by their id. Each belongs to one tenant."""

    store: Annotated[
        bool,
        Meta(description="Whether responses are stored; a request may say `store: false` for its own."),
    ] = True
    ttl_s: Annotated[
        float, Meta(gt=0, le=365 * 86400, description="Seconds until a stored response is erased.")
    ] = 30 * 86400
    max_bytes: Annotated[
        int, Meta(ge=1 << 20, description="Size of all stored responses; the oldest are erased first.")
    ] = 1 << 30
