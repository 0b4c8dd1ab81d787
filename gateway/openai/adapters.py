"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's bodies."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.adapters.loader import AdapterLoader
from gateway.auth import KeyRing, Principal
from gateway.openai.models import model_entry
from gateway.openai.shape import encode
from gateway.requests.parse import decode_body, typed
from gateway.web.http_call import Call
from policies.document import ADAPTER_NAME

LoraName = Annotated[str, Meta(pattern=ADAPTER_NAME + r"\Z", max_length=128)]  # "$" lets a line break pass


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which folder to serve under which name; an adapter that has the name already is replaced."""

    lora_name: LoraName
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    base_model: str | None = None  # extension; needed where several engines run
    load_inplace: bool | None = None  # vLLM's; false refuses a name that is loaded already


class UnloadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which adapter to serve no longer."""

    lora_name: LoraName
    base_model: str | None = None  # extension, as above
    lora_int_id: int | None = None  # vLLM's; names suffice


class AdaptersEndpoint:
    """Loads and unloads adapters for principals that the policies name."""

    def __init__(self, keys: KeyRing, loader: AdapterLoader, max_body_bytes: int) -> None:
        self._keys = keys
        self._loader = loader
        self._max_body_bytes = max_body_bytes

    async def load(self, call: Call) -> None:
        """Answer with the new model's entry."""
        principal = self._authorize(call)
        request = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), LoadRequest)
        name, model = await self._loader.load(
            principal,
            request.lora_name,
            request.lora_path,
            request.base_model,
            replaces=request.load_inplace is not False,
        )
        await call.respond(encode(model_entry(name, model)))

    async def unload(self, call: Call) -> None:
        """Answer as OpenAI does when a model is deleted."""
        principal = self._authorize(call)
        request = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), UnloadRequest)
        await self._loader.unload(principal, request.lora_name, request.base_model)
        await call.respond(encode({"id": request.lora_name, "object": "model", "deleted": True}))

    def _authorize(self, call: Call) -> Principal:
        """Refuse before the body is read whoever may load on no engine."""
        principal = self._keys.identify(call.authorization)
        self._loader.authorize(principal)
        return principal
