"""Which endpoint gets a request: that of the engine which is predicted to begin its answer first."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from backend.server.engine_client import EngineClient
from gateway.auth import KeyRing
from gateway.errors import ApiError, Unauthorized
from gateway.exchange.model_table import ModelTable
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Prompt
from gateway.requests.parse import decode_body, typed
from gateway.requests.reasoning import with_effort
from gateway.requests.types import ChatRequest


class Refusal(Exception):
    """No endpoint gets the request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """What decides, of one HTTP request."""

    path: str = ""
    authorization: str = ""
    body: bytes = b""
    subset: Collection[str] | None = None  # endpoints that the proxy allows; None: all


class EndpointPicker:
    """Predicts as a gateway does, for chats with their prompt; other requests go by the queues alone.

    A request that cannot be read goes to an endpoint too, which refuses it in its own words.
    """

    def __init__(self, models: ModelTable, keys: KeyRing, port: int) -> None:
        """`models`: with an engine each, all behind the same endpoints; `port`: where these speak HTTP."""
        self._models = models
        self._keys = keys
        self._port = port

    @property
    def is_ready(self) -> bool:
        """Whether any engine can get a request."""
        engines = [model.engine for model in self._models.models.values()]
        return any(client.ready for engine in engines if engine for client in engine.service.replicas.clients)

    async def pick(self, asked: Asked) -> str:
        """The endpoint as `HOST:PORT`. Raises Refusal."""
        engine, prompt = await self._read(asked)
        replicas = engine.service.replicas
        ready = {
            number: client
            for number, client in enumerate(replicas.clients)
            if client.ready and (asked.subset is None or self._endpoint(client) in asked.subset)
        }
        if not ready:
            raise Refusal(503, f"No endpoint of the model {engine.name!r} is ready.")
        not_full = [number for number, client in ready.items() if not _is_full(client)]
        if not not_full:
            raise Refusal(429, f"The queues of all endpoints of the model {engine.name!r} are full.")
        chosen = replicas.choose_among(prompt, not_full)
        if chosen is None:
            raise Refusal(503, f"No endpoint has the model {engine.name!r} now.")
        return self._endpoint(chosen)

    def _endpoint(self, client: EngineClient) -> str:
        host = client.host
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    async def _read(self, asked: Asked) -> tuple[EngineProvider, Prompt]:
        """The engine that is asked, and what its prompt costs."""
        engine = next(model.engine for model in self._models.models.values() if model.engine is not None)
        prompt: Prompt | None = None
        try:
            body = decode_body(asked.body)
            if (found := self._models.resolve(str(body.get("model"))).engine) is not None:
                engine = found
            if asked.path.partition("?")[0].endswith("/chat/completions"):
                request = with_effort(typed(body, ChatRequest))
                prompt = await engine.prompt(request, self._tenant_salt(asked))
        except ApiError:
            pass
        # Less than a page, so that it is found nowhere, and equal queues share such requests.
        return engine, prompt or Prompt([random.getrandbits(31)], adapter=engine.adapter)

    def _tenant_salt(self, asked: Asked) -> str:
        try:
            return self._keys.identify(asked.authorization).tenant_salt
        except Unauthorized:
            return ""


def _is_full(client: EngineClient) -> bool:
    return client.hello is not None and client.stats.num_waiting >= client.hello.max_queue
