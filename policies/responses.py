"""The `responses` section: how long responses, and chats with `store: true`, are kept."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ResponsesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stored responses and chat completions, which clients find by their id. Each belongs to one tenant."""

    store: Annotated[
        bool,
        Meta(
            description="Whether any are stored. A request's `store` is true by default for responses, "
            "false for chats."
        ),
    ] = True
    ttl_s: Annotated[
        float, Meta(gt=0, le=365 * 86400, description="Seconds from its last change until one is erased.")
    ] = 30 * 86400
    max_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Size of the file that has them; the oldest are erased first. It does not bound a "
            "PostgreSQL server.",
        ),
    ] = 1 << 30
    max_bytes_per_tenant: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="About how much one tenant stores, in either database; its own oldest are erased "
            "first.",
        ),
    ] = 1 << 28
    max_object_bytes: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="Size of a response with what it continues, of a conversation or of a chat. A larger "
            "one is refused; so is one of more than a quarter of `max_bytes_per_tenant`.",
        ),
    ] = 1 << 24
    max_object_items: Annotated[int, Meta(ge=1, description="Items that one has at most.")] = 10_000
    max_background_per_tenant: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Responses of one tenant in the background of a gateway worker, which has 1024 in "
            "all. The tenant's limits hold for them too.",
        ),
    ] = 64
