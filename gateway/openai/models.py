"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gateway.auth import KeyRing
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.exchange.shape import encode
from gateway.web.http_call import HttpCall
from policies.prices import Price

ANTHROPIC_HEADER = "anthropic-version"
"""Sent by Anthropic's clients only, which read other members of an entry."""


class ModelsEndpoint:
    """Lists models, adapters and routes: every value that `model` may have in a request."""

    def __init__(self, keys: KeyRing, models: ModelTable) -> None:
        self._keys = keys
        self._models = models

    async def list(self, call: HttpCall) -> None:
        """All of them, except routes to adapters that are not loaded."""
        self._keys.identify(call.authorization)
        entries = [model_entry(model.name, model) for model in self._models.models.values()]
        routes = [(name, self._models.resolve(name)) for name in self._models.routes]
        entries += [
            model_entry(name, model)
            for name, model in routes
            if model.engine is None or model.engine.model.is_loaded
        ]
        entries += [model_entry(model.name, model) for model in self._models.adapter_models()]
        body: dict[str, Any] = {"object": "list", "data": entries}
        if call.read_header(ANTHROPIC_HEADER):
            ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
            body |= {"data": [_for_anthropic(entry) for entry in entries], "has_more": False, **ends}
        await call.respond(encode(body))

    async def show(self, call: HttpCall) -> None:
        """One of them. Raises NotFound."""
        self._keys.identify(call.authorization)
        name: str = call.scope["path_params"]["id"]
        found = self._models.resolve(name)
        if found.engine is not None:
            found.engine.model.check_loaded()
        entry = model_entry(name, found)
        await call.respond(encode(_for_anthropic(entry) if call.read_header(ANTHROPIC_HEADER) else entry))


def model_entry(name: str, model: ServedModel) -> dict[str, Any]:
    """The entry of /v1/models for a model under one of its names."""
    entry = {"id": name, "object": "model", "created": model.created, "owned_by": model.owned_by}
    if model.kind != "upstream":  # whose model may be of any kind
        entry["mode"] = "embedding" if model.kind == "encoder" else "chat"  # LiteLLM's name for it
    if model.engine is not None and model.engine.client.hello is not None:
        entry["max_model_len"] = model.engine.client.hello.max_model_tokens  # vLLM's name for it
    if model.parent:
        entry["parent"] = model.parent  # vLLM's name for an adapter's base
    elif model.name != name:
        entry["root"] = model.name  # vLLM's name for the model that answers
    if model.price is not None:
        entry["pricing"] = _pricing(model.price)
    return entry


def _for_anthropic(entry: dict[str, Any]) -> dict[str, Any]:
    """With what Anthropic's clients read."""
    created = datetime.fromtimestamp(entry["created"], UTC).isoformat()
    shown = {"type": "model", "display_name": entry["id"], "created_at": created, "lifecycle": "active"}
    return {**entry, **shown}


def _pricing(price: Price) -> dict[str, str]:
    """In OpenRouter's shape: USD per token, as a decimal string because a float is inexact."""
    per_million = {
        "prompt": price.input_usd_per_million_tokens,
        "completion": price.output_usd_per_million_tokens,
        "input_cache_read": price.cached_input_usd_per_million_tokens,
        "input_cache_write": price.cache_write_usd_per_million_tokens,
        "internal_reasoning": price.reasoning_usd_per_million_tokens,
        "request": price.request_usd * 1e6 or None,
    }
    return {name: _per_token(usd) for name, usd in per_million.items() if usd is not None}


def _per_token(usd_per_million: float) -> str:
    return f"{(Decimal(repr(usd_per_million)) / 1_000_000).normalize():f}"
