"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's bodies."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.adapters.loader import AdapterLoader
from gateway.auth import KeyRing, Principal
from gateway.exchange.shape import encode
from gateway.openai.models import model_entry
from gateway.requests.parse import decode_body, typed
from gateway.web.http_call import HttpCall
from policies.document import ADAPTER_NAME

LoraName = Annotated[
    str, Meta(pattern=ADAPTER_NAME + r"\Z", max_length=128)
]  # not "$": it matches before a newline


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which folder to serve under which name; a loaded adapter of that name is replaced."""

    lora_name: LoraName
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    base_model: str | None = None  # extension; required when several engines run
    load_inplace: bool | None = None  # vLLM's; false: refuse a name that is already loaded
    force: bool | None = None  # extension; true: load it even if it names another base model


class UnloadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which adapter to unload."""

    lora_name: LoraName
    base_model: str | None = None  # extension, as above
    lora_int_id: int | None = None  # vLLM's; ignored


class AdaptersEndpoint:
    """Loads and unloads adapters for the principals that the policies allow."""

    def __init__(self, keys: KeyRing, loader: AdapterLoader, max_body_bytes: int) -> None:
        self._keys = keys
        self._loader = loader
        self._max_body_bytes = max_body_bytes

    async def load(self, call: HttpCall) -> None:
        """Load an adapter; respond with its entry in /v1/models."""
        principal = self._authorize(call)
        request = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), LoadRequest)
        name, model = await self._loader.load(
            principal,
            request.lora_name,
            request.lora_path,
            request.base_model,
            replaces=request.load_inplace is not False,
            force=bool(request.force),
        )
        await call.respond(encode(model_entry(name, model)))

    async def unload(self, call: HttpCall) -> None:
        """Unload an adapter; respond as OpenAI does when a model is deleted."""
        principal = self._authorize(call)
        request = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), UnloadRequest)
        await self._loader.unload(principal, request.lora_name, request.base_model)
        await call.respond(encode({"id": request.lora_name, "object": "model", "deleted": True}))

    def _authorize(self, call: HttpCall) -> Principal:
        """Refuse a principal that may load on no engine, before its body is read."""
        principal = self._keys.identify(call.authorization)
        self._loader.authorize(principal)
        return principal
