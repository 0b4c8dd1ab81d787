"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from backend.errors import AdapterError, AdapterExists, EngineUnavailable
from gateway.adapters.folders import check_may_load, loadable_folder
from gateway.auth import KeyRing, Principal
from gateway.errors import InvalidRequest, NotFound, TimedOut
from gateway.openai.models import model_entry
from gateway.openai.shape import encode
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.providers.engine.provider import EngineProvider
from gateway.requests.parse import decode_body, typed
from gateway.web.http_call import Call
from policies.document import ADAPTER_NAME, AdapterLoading

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

    def __init__(
        self,
        keys: KeyRing,
        models: ModelTable,
        loading: Mapping[str, AdapterLoading | None],
        max_body_bytes: int,
        total_timeout_s: float,
    ) -> None:
        """`loading`: by the name of the base model."""
        self._keys = keys
        self._models = models
        self._loading = loading
        self._max_body_bytes = max_body_bytes
        self._total_timeout_s = total_timeout_s
        self._claims: list[tuple[str, str]] = []  # name and base of each load under way

    async def load(self, call: Call) -> None:
        """Answer with the new model's entry."""
        principal = self._authorize(call)
        request = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), LoadRequest)
        base, engine = self._base(request.base_model)
        folder = loadable_folder(request.lora_path, check_may_load(principal, self._loading.get(base.name)))
        try:
            with self._claimed(request.lora_name, base):
                await self._load(request, base, engine, str(folder))
        except AdapterExists:
            raise InvalidRequest(
                f"{request.lora_name!r} is loaded already, and 'load_inplace' is false. "
                "Send true to load it anew.",
                param="load_inplace",
                code="adapter_exists",
            ) from None
        except AdapterError as error:
            raise InvalidRequest(str(error), param="lora_path", code="invalid_adapter") from None
        except EngineUnavailable:
            raise engine.unavailable() from None
        found = self._models.resolve(f"{base.name}:{request.lora_name}")
        is_unique = len(self._models.bases_of(request.lora_name)) == 1
        await call.respond(encode(model_entry(request.lora_name if is_unique else found.name, found)))

    async def _load(
        self, request: LoadRequest, base: ServedModel, engine: EngineProvider, folder: str
    ) -> None:
        """Load it, and take it away again where the name has become another base's meanwhile."""
        name, replaces = request.lora_name, request.load_inplace is not False
        had_name = bool(self._models.bases_of(name))  # checked: then it is this base's
        await self._in_time(engine.client.load_adapter(name, folder, replaces=replaces))
        others = [model.name for model in self._models.bases_of(name) if model.name != base.name]
        if had_name or not others:
            return
        # Another gateway worker did that, which cannot know of our claim.
        with suppress(AdapterError):
            await self._in_time(engine.client.unload_adapter(name))
        raise InvalidRequest(
            f"{name!r} was loaded on {others[0]!r} at the same time, and is not served on {base.name!r}. "
            "Choose another name. If it was refused there as well, as GET /v1/models shows, send this again.",
            param="lora_name",
        )

    async def unload(self, call: Call) -> None:
        """Answer as OpenAI does when a model is deleted."""
        principal = self._authorize(call)
        request = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), UnloadRequest)
        base, engine = self._base(request.base_model)
        check_may_load(principal, self._loading.get(base.name))
        try:
            await self._in_time(engine.client.unload_adapter(request.lora_name))
        except AdapterError as error:
            raise NotFound(str(error), param="lora_name", code="adapter_not_found") from None
        except EngineUnavailable:
            raise engine.unavailable() from None
        await call.respond(encode({"id": request.lora_name, "object": "model", "deleted": True}))

    async def _in_time(self, change: Awaitable[object]) -> None:
        """Wait for the engine to do it. Raises TimedOut; it may be done later all the same."""
        try:
            async with asyncio.timeout(self._total_timeout_s):
                await change
        except TimeoutError:
            raise TimedOut(
                f"The engine did not do it within {self._total_timeout_s:g} s, and may do it yet: "
                "GET /v1/models lists the adapters that are loaded."
            ) from None

    def _check_name(self, name: str, base: ServedModel) -> None:
        """Raise InvalidRequest for a name that is a model's, or would make another's ambiguous."""
        if name in self._models.models or name in self._models.routes:
            raise InvalidRequest(
                f"{name!r} is the name of a model or route. Choose another.", param="lora_name"
            )
        bases = {model.name: model for model in self._models.bases_of(name)}
        if base.name in bases:
            return
        claims = [other for claimed, other in self._claims if claimed == name and other != base.name]
        if claims:
            raise InvalidRequest(
                f"{name!r} is being loaded on {claims[0]!r} at this moment. Choose another.",
                param="lora_name",
            )
        if bases:
            raise InvalidRequest(_whose(name, next(iter(bases.values()))), param="lora_name")

    @contextmanager
    def _claimed(self, name: str, base: ServedModel) -> Iterator[None]:
        """Keep others from loading the name on another base meanwhile. Raises InvalidRequest, as they do."""
        self._check_name(name, base)
        claim = (name, base.name)
        self._claims.append(claim)
        try:
            yield
        finally:
            self._claims.remove(claim)

    def _authorize(self, call: Call) -> Principal:
        """Who may load into no engine is sent away before a byte of the body is read."""
        principal = self._keys.identify(call.authorization)
        allowed = [each for each in self._loading.values() if each and principal.tenant in each.principals]
        check_may_load(principal, allowed[0] if allowed else None)
        return principal

    def _base(self, name: str | None) -> tuple[ServedModel, EngineProvider]:
        model = self._models.only_engine() if name is None else self._models.models.get(name)
        if model is None or model.engine is None:
            engines = [each.name for each in self._models.models.values() if each.engine is not None]
            raise InvalidRequest(
                f"'base_model' must name the engine's model that the adapter is for: {', '.join(engines)}.",
                param="base_model",
            )
        return model, model.engine


def _whose(name: str, base: ServedModel) -> str:
    """Why the name can be no other base's."""
    if base.engine is not None and name in base.engine.client.adapter_names:
        return f"{name!r} is an adapter of {base.name!r}, asked for by this name. Choose another."
    return (
        f"The policies give the name {name!r} to {base.name!r}. Load it there, take it out of the policies "
        "or choose another."
    )
