"""Probes and /metrics: without authentication, so they show no content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

import msgspec

from gateway.admin.policies import PolicyControl
from gateway.exchange.model_table import ModelState, ModelTable
from gateway.telemetry.metrics import CONTENT_TYPE, Metrics
from gateway.web.http_call import HttpCall

LIVE_PATHS = ("/health/live", "/healthz")
READY_PATHS = ("/health/ready", "/ready", "/health")
"""`/health` waits for the models, as those of vLLM and llama.cpp do; a liveness probe is `/healthz`."""


REFUSED = "the latest change of the policies was refused; the log and `penstock policy versions` say why"
"""Why may hold names and paths, which are not for callers without a key."""


class HealthEndpoint:
    """Probes for load balancers and orchestrators, and the scrape target of Prometheus."""

    def __init__(
        self,
        models: ModelTable,
        metrics: Metrics,
        policies: PolicyControl,
        stores: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`stores`: what is wrong with what survives a restart."""
        self._stores = stores
        self._models = models
        self._metrics = metrics
        self._policies = policies

    async def live(self, call: HttpCall) -> None:
        """200 while this process runs its event loop."""
        await call.respond(b'{"status":"alive"}')

    async def ready(self, call: HttpCall) -> None:
        """200 when every engine and encoder is ready (recent heartbeat), else 503; lists each state.

        503 also once SIGTERM has come, while `PENSTOCK_DRAIN_DELAY_S` passes.

        An upstream's is information only: `phase` says why others answer for it.

        `stores`: what is wrong with the data folder, where something is.
        `failure` in a state: its process has failed several times in a row, why, and when it is tried again.
        """
        models = self._models.models
        states = {name: model.state() for name, model in models.items()}
        is_ready = all(state.ready for name, state in states.items() if models[name].kind != "upstream")
        is_leaving = self._policies.state.is_leaving
        status = "draining" if is_leaving else "ready" if is_ready else "unavailable"
        body: dict[str, object] = {
            "status": status,
            "models": {name: _shown(state) for name, state in states.items()},
        }
        if self._policies.state.error:  # the version before goes on
            body["policies"] = {"error": REFUSED}
        if stores := self._stores():  # what does not need them goes on
            body["stores"] = stores
        await call.respond(msgspec.json.encode(body), status=200 if status == "ready" else 503)

    async def metrics(self, call: HttpCall) -> None:
        """All metrics in Prometheus' text format."""
        await call.respond(self._metrics.render(), CONTENT_TYPE.encode("ascii"))


def _shown(state: ModelState) -> dict[str, object]:
    return {name: value for name, value in asdict(state).items() if value is not None}
