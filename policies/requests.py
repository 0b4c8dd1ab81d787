"""The `requests` section: what of a request is left out where no model here can do it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class RequestsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What agents send to every model, whether it is of use there or not."""

    hosted_tools: Annotated[
        Literal["refuse", "drop"],
        Meta(
            description="Tools that OpenAI or Anthropic would run, such as `web_search`, which nothing runs "
            "here: `refuse` a request of the Responses or Messages API that has one, or `drop` them from it "
            "and name them in the response header `x-penstock-ignored-fields`. Codex needs `drop`."
        ),
    ] = "refuse"
