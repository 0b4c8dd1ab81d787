"""Engines behind a DNS name: one replica for each address, added and removed as its records change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, MutableMapping

from backend.server.engine_client import EngineClient
from gateway.providers.engine.remote import Door
from gateway.providers.engine.replicas import Replicas
from policies.engine_addresses import Address
from policies.names import replica_name
from policies.urls import is_loopback

logger = logging.getLogger(__name__)

REFRESH_S = 10.0
AFTER_LOSS_S = 1.0
"""How soon a lost connection has the name looked up again."""
_POLL_S = 0.05


class DnsReplicas:
    """Keeps the replicas of a model what the records say. A look-up that fails changes nothing."""

    def __init__(
        self,
        model: str,
        address: Address,
        door: Door,
        replicas: Replicas,
        engines: MutableMapping[str, EngineClient],
    ) -> None:
        """`engines`: all engines by name, which these are added to."""
        self._model = model
        self._address = address
        self._door = door
        self._replicas = replicas
        self._engines = engines
        self._clients: dict[Address, EngineClient] = {}
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._fault = ""

    async def start(self) -> None:
        """Look up the name now and again."""
        self._task = asyncio.create_task(self._keep(), name=f"dns {self._address}")

    async def close(self) -> None:
        """Leave all engines."""
        tasks = [*self._retiring, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()

    async def _keep(self) -> None:
        while True:
            try:
                await self._use(await self._look_up())
                self._fault = ""
            except OSError as error:
                if str(error) != self._fault:
                    self._fault = str(error)
                    logger.warning("the name of %s cannot be looked up: %s", self._address, error)
            self._lost.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._lost.wait()
                    await asyncio.sleep(AFTER_LOSS_S)

    async def _look_up(self) -> set[Address]:
        """The addresses of its A and AAAA records. Raises OSError."""
        scheme, name, port = self._address.scheme, self._address.host, self._address.port
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        hosts = {str(place[0]) for _, _, _, _, place in found}
        return {Address(scheme, host, port) for host in hosts if scheme == "tls" or is_loopback(host)}

    async def _use(self, found: set[Address]) -> None:
        for address in sorted(found - self._clients.keys(), key=str):
            endpoint = self._door.endpoint(address, self._address.host)
            client = EngineClient(endpoint, self._replicas.index.add_replica())
            self._clients[address] = self._engines[replica_name(self._model, str(address))] = client
            self._replicas.add(client)
            client.on_lost = _both(client.on_lost, self._lost.set)
            await client.start()
            logger.info("%s has the engine %s", self._address, address)
        for address in self._clients.keys() - found:
            client = self._clients.pop(address)
            self._replicas.remove(client)
            task = asyncio.create_task(self._retire(address, client))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, address: Address, client: EngineClient) -> None:
        """Leave it once it has answered what it has begun."""
        logger.info("%s has the engine %s no more", self._address, address)
        try:
            while client.num_streams:
                await asyncio.sleep(_POLL_S)
        finally:
            await client.close()
            client.pages.release()
            name = replica_name(self._model, str(address))
            if self._engines.get(name) is client:
                del self._engines[name]


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call
