"""The `passthrough` section: paths of an upstream's API that are forwarded as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from policies.convert import KeyPath
from policies.endpoints import own_prefixes
from policies.errors import Place, Problem
from policies.names import Name
from policies.services import SERVICES
from policies.tenants import TenantName

PassthroughPath = Annotated[str, Meta(pattern=r"^/v1(/[a-z0-9_-]+)+$", max_length=128)]
OWN_PATHS = (
    *own_prefixes(), "/v1/conversations",
    "/v1/models", "/v1/files", "/v1/batches", "/v1/cache", "/v1/feedback", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "/v1/usage",
)  # fmt: skip
"""What Penstock serves itself; a test compares this with its routes."""


class PassthroughRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where requests to one path and all paths below it go, with the upstream's API key, unscreened."""

    model: Annotated[
        Name,
        Meta(description="An `upstream` model with the `openai` API: its URL, key, network and time limits."),
    ]
    tenants: Annotated[
        list[TenantName] | None,
        Meta(
            description="Who may use it; default: every tenant. What the upstream stores, such as files and "
            "fine-tuned models, is visible to all of them."
        ),
    ] = None
    max_body_bytes: Annotated[int, Meta(ge=0, description="Size of a request's body.")] = 64 << 20


def passthrough_problems(
    sections: Mapping[str, Mapping[str, Any]], places: Mapping[KeyPath, Place]
) -> Iterator[Problem]:
    """What is wrong with the section as converted from YAML."""
    for path, rule in sections["passthrough"].items():
        place = places[("passthrough", path)]
        if own := next((each for each in OWN_PATHS if f"{path}/".startswith(f"{each}/")), None):
            yield Problem(place, f"passthrough.{path} is served by Penstock itself ({own}); remove it")
        name = str((rule or {}).get("model", ""))
        if name and not _is_openai((sections["models"].get(name) or {}).get("upstream")):
            message = f"passthrough.{path}.model: {name!r} is not an upstream model with the openai API"
            yield Problem(places[("passthrough", path, "model")], message)


def _is_openai(upstream: Mapping[str, Any] | None) -> bool:
    if upstream is None:
        return False
    service = SERVICES.get(upstream.get("service") or "openai")
    return bool(upstream.get("api", service.api if service is not None else "openai") == "openai")
