"""The `batches` section: uploaded files, and how /v1/batches runs them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class BatchesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of /v1/files and batches of /v1/batches. Each belongs to one tenant."""

    max_concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Lines of batches that one gateway worker asks at the same time. Engines compute "
            "them when no other request has a prompt to compute.",
        ),
    ] = 8
    max_lines: Annotated[int, Meta(ge=1, description="Lines of a batch.")] = 50_000
    max_file_bytes: Annotated[int, Meta(ge=1, description="Size of an uploaded file.")] = 200 << 20
    max_tenant_bytes: Annotated[
        int,
        Meta(
            ge=1,
            description="Size of a tenant's files beyond which it can upload no more. Each counts as 4096 at "
            "least.",
        ),
    ] = 4 << 30
    max_tenant_files: Annotated[
        int, Meta(ge=1, description="Number of a tenant's files beyond which it can upload no more.")
    ] = 10_000
    max_open_batches: Annotated[
        int,
        Meta(
            ge=1,
            description="A tenant's batches that have not ended. A gateway worker runs one of them at a "
            "time.",
        ),
    ] = 100
    ttl_s: Annotated[
        int,
        Meta(
            ge=3600,
            le=365 * 86400,
            description="Seconds until a file is erased that was stored without `expires_after`, and until a "
            "batch that has ended is.",
        ),
    ] = 30 * 86400
