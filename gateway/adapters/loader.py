"""Loads and unloads adapters while the gateway runs: who may, under which name, and races between workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress

from backend.errors import AdapterError, AdapterExists, EngineUnavailable
from gateway.adapters.folders import check_may_load, loadable_folder
from gateway.auth import Principal
from gateway.errors import InvalidRequest, NotFound, TimedOut
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.providers.engine.provider import EngineProvider
from policies.document import AdapterLoading


class AdapterLoader:
    """Decides about every load and unload, and has the engine do it. Names are unique across base models."""

    def __init__(
        self, models: ModelTable, loading: Mapping[str, AdapterLoading | None], timeout_s: float
    ) -> None:
        """`loading`: what the policy allows, by the name of the base model."""
        self._models = models
        self._loading = loading
        self._timeout_s = timeout_s
        self._claims: list[tuple[str, str]] = []  # name and base model of each load in progress

    def authorize(self, principal: Principal) -> None:
        """Raise Forbidden for a principal that may load on no engine at all."""
        allowed = [each for each in self._loading.values() if each and principal.tenant in each.principals]
        check_may_load(principal, allowed[0] if allowed else None)

    async def load(
        self,
        principal: Principal,
        name: str,
        path: str,
        base_name: str | None,
        *,
        replaces: bool,
        force: bool = False,
    ) -> tuple[str, ServedModel]:
        """Load the adapter in the folder `path`; the name to ask for it by, and the new model.

        `base_name`: None where only one engine runs. `force`: even if it names another base. Raises ApiError.
        """
        base, engine = self._base(base_name)
        folder = loadable_folder(path, check_may_load(principal, self._loading.get(base.name)))
        try:
            await _wake(engine)
            with self._claimed(name, base):
                await self._load(name, base, engine, str(folder), replaces=replaces, force=force)
        except AdapterExists:
            raise InvalidRequest(
                f"{name!r} is loaded already, and 'load_inplace' is false. Send true to load it again.",
                param="load_inplace",
                code="adapter_exists",
            ) from None
        except AdapterError as error:
            raise InvalidRequest(str(error), param="lora_path", code="invalid_adapter") from None
        except EngineUnavailable:
            raise engine.model.unavailable() from None
        found = self._models.resolve(f"{base.name}:{name}")
        is_unique = len(self._models.bases_of(name)) == 1
        return (name if is_unique else found.name), found

    async def unload(self, principal: Principal, name: str, base_name: str | None) -> None:
        """Serve the adapter no longer; its running requests finish. Raises ApiError."""
        base, engine = self._base(base_name)
        check_may_load(principal, self._loading.get(base.name))
        try:
            await _wake(engine)
            await self._in_time(engine.service.replicas.unload_adapter(name))
        except AdapterError as error:
            raise NotFound(str(error), param="lora_name", code="adapter_not_found") from None
        except EngineUnavailable:
            raise engine.model.unavailable() from None

    async def _load(
        self,
        name: str,
        base: ServedModel,
        engine: EngineProvider,
        folder: str,
        *,
        replaces: bool,
        force: bool,
    ) -> None:
        """Load it, and unload it again when the name became another base's in the meantime."""
        had_name = bool(self._models.bases_of(name))  # checked: then it is this base's
        await self._in_time(
            engine.service.replicas.load_adapter(name, folder, replaces=replaces, force=force)
        )
        others = [model.name for model in self._models.bases_of(name) if model.name != base.name]
        if had_name or not others:
            return
        # Another gateway worker loaded it there: claims are per worker.
        with suppress(AdapterError):
            await self._in_time(engine.service.replicas.unload_adapter(name))
        raise InvalidRequest(
            f"{name!r} was loaded on {others[0]!r} at the same time, and is not served on {base.name!r}. "
            "Choose another name. If it was refused there as well, as GET /v1/models shows, send this again.",
            param="lora_name",
        )

    async def _in_time(self, change: Awaitable[object]) -> None:
        """Wait for the engine. Raises TimedOut; the change may still happen later."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await change
        except TimeoutError:
            raise TimedOut(
                f"The engine did not do it within {self._timeout_s:g} s, and may do it yet: "
                "GET /v1/models lists the adapters that are loaded."
            ) from None

    @contextmanager
    def _claimed(self, name: str, base: ServedModel) -> Iterator[None]:
        """Reserve the name for this base while it is loaded. Raises InvalidRequest when it is taken."""
        self._check_name(name, base)
        claim = (name, base.name)
        self._claims.append(claim)
        try:
            yield
        finally:
            self._claims.remove(claim)

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
            raise InvalidRequest(_taken_by(name, next(iter(bases.values()))), param="lora_name")

    def _base(self, name: str | None) -> tuple[ServedModel, EngineProvider]:
        model = self._models.only_engine() if name is None else self._models.models.get(name)
        if model is None or model.engine is None:
            engines = [each.name for each in self._models.models.values() if each.engine is not None]
            raise InvalidRequest(
                f"'base_model' must name the engine's model that the adapter is for: {', '.join(engines)}.",
                param="base_model",
            )
        return model, model.engine


def _taken_by(name: str, base: ServedModel) -> str:
    """Why no other base model can use the name."""
    if base.engine is not None and name in base.engine.client.adapter_names:
        return f"{name!r} is an adapter of {base.name!r}, asked for by this name. Choose another."
    return (
        f"The policies give the name {name!r} to {base.name!r}. Load it there, take it out of the policies "
        "or choose another."
    )


async def _wake(engine: EngineProvider) -> None:
    """Wait for a start where all processes sleep: there is none to change. Raises EngineUnavailable."""
    if engine.client.is_asleep():
        await engine.service.wait_ready()
