"""The sections `tenants` and `admin`: what the policies say about who asks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

TenantName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
"""`key-` and the first 8 hex digits of the SHA-256 of an API key; without API keys, `default`."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tenant."""

    tier: Annotated[
        str, Meta(max_length=64, description="Any word, for conditions: `tenant.tier == 'gold'`.")
    ] = ""
    description: str = ""


class AdminSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may manage the running gateway through /admin."""

    principals: Annotated[list[TenantName], Meta(description="Tenants. Default: none.")] = []
