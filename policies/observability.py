"""The `observability` section: what is recorded about decisions."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ObservabilitySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions are recorded where $PENSTOCK_DECISION_LOG names a file; without text unless this says so."""

    decision_texts: Annotated[
        bool,
        Meta(
            description="Record the last turn of the user as well, which may hold personal data: for "
            "`penstock router train --log`."
        ),
    ] = False
