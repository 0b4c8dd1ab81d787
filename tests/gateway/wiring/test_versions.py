"""What holds over a reload of the policies, in one worker with a real upstream."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from gateway.processes.managed_process import Progress
from gateway.processes.messages import Activate, Prepare, Version
from gateway.processes.supervisor_pipes import SupervisorPipes
from gateway.settings import Settings
from gateway.wiring.versions import Versions
from policies.document import ModelEntry, Policies
from policies.routes import Route, RoutingSection, Rule, Shadow
from policies.tenants import Limits, Tier
from policies.upstream import UpstreamModel
from tests.e2e.upstream import Upstream
from tests.gateway.processes.test_managed_process import until


@contextlib.contextmanager
def serving() -> Iterator[Upstream]:
    found = Upstream()
    yield found
    found.released.set()
    found.close()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving() as found:
        yield found


class Worker:
    """A worker's versions, and the supervisor's ends of its pipes."""

    def __init__(self, policies: Policies) -> None:
        self._stdin, self._to_worker = os.pipe()
        self._from_worker, self._stdout = os.pipe()
        os.set_blocking(self._from_worker, False)
        self._serial = 1
        self._lines = b""
        self.versions = Versions(self._version(policies), 0, SupervisorPipes(self._stdin, self._stdout))

    def _version(self, policies: Policies) -> Version:
        return Version(self._serial, policies, Settings(), tuple(policies.names()))

    async def reload(self, policies: Policies) -> None:
        """Reload as the supervisor does: prepare, wait until the worker has, activate."""
        self._serial += 1
        self.versions.on_message(Prepare(self._version(policies)))
        await until(lambda: self._prepared() == self._serial)
        self.versions.on_message(Activate(self._serial))

    def _prepared(self) -> int:
        with contextlib.suppress(BlockingIOError):
            self._lines += os.read(self._from_worker, 1 << 16)
        *_, last, _ = [b"{}", *self._lines.split(b"\n")]
        return 0 if last == b"{}" else msgspec.json.decode(last, type=Progress).prepared

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of whichever version is current."""
        app = self.versions.app
        async with (
            app.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client,  # type: ignore[arg-type]
        ):
            yield client
        await self.versions.close()
        for fd in (self._stdin, self._to_worker, self._from_worker, self._stdout):
            os.close(fd)


def policies(
    upstream: Upstream,
    version: str,
    other: Upstream | None = None,
    **sections: Any,  # noqa: ANN401
) -> Policies:
    models = {
        name: ModelEntry(upstream=UpstreamModel(base_url=each.base_url, model=name))
        for name, each in (("m", upstream), ("other", other or upstream))
    }
    return Policies(models=models, routes={"auto": Route(model="m")}, version=version, **sections)


async def ask(http: httpx.AsyncClient, text: str = "hi") -> httpx.Response:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    return await http.post("/v1/chat/completions", json=body, timeout=20)


async def test_a_limit_of_requests_at_a_time_counts_those_of_the_version_before(upstream: Upstream) -> None:
    tiers = {"default": Tier(limits=Limits(concurrent_requests=1))}
    worker = Worker(policies(upstream, "v1", tiers=tiers))
    async with worker.serving() as http:
        held = asyncio.create_task(ask(http, "hold"))
        await until(lambda: len(upstream.seen) == 1)
        await worker.reload(policies(upstream, "v2", tiers=tiers))
        refused = await ask(http)
        assert refused.status_code == 429 and "1 requests at the same time" in refused.text
        upstream.released.set()
        answered = await held
        assert (answered.status_code, answered.headers["x-penstock-policy"]) == (200, "v1")
        answered = await ask(http)
        assert (answered.status_code, answered.headers["x-penstock-policy"]) == (200, "v2")


async def test_a_reload_does_not_begin_the_rate_of_shadow_requests_again(upstream: Upstream) -> None:
    rules = [Rule(shadow=Shadow(model="other", share=1.0, max_per_minute=3))]
    routing = RoutingSection(rules=rules)

    def num_sent() -> int:
        return sum(seen.body["model"] == "other" for seen in upstream.seen)

    worker = Worker(policies(upstream, "v1", routing=routing))
    async with worker.serving() as http:
        for _ in range(2):
            assert (await ask(http)).status_code == 200
        await until(lambda: num_sent() == 2)
        await worker.reload(policies(upstream, "v2", routing=routing))
        for _ in range(6):
            assert (await ask(http)).headers["x-penstock-policy"] == "v2"
        await until(lambda: num_sent() >= 3)
        assert num_sent() == 3


async def test_a_copy_that_runs_at_a_reload_is_answered_and_measured(upstream: Upstream) -> None:
    routing = RoutingSection(rules=[Rule(shadow=Shadow(model="other", share=1.0))])
    upstream.released.set()
    with serving() as slow:
        worker = Worker(policies(upstream, "v1", slow, routing=routing))
        async with worker.serving() as http:
            assert (await ask(http, "hold")).status_code == 200
            await until(lambda: len(slow.seen) == 1)
            await worker.reload(policies(upstream, "v2", slow))
            assert (await ask(http)).headers["x-penstock-policy"] == "v2"
            slow.released.set()
            measured, text = 'penstock_requests_total{endpoint="shadow",model="other",status="2xx"} 1.0', ""
            async with asyncio.timeout(10):
                while measured not in text:
                    await asyncio.sleep(0.01)
                    text = (await http.get("/metrics")).text
