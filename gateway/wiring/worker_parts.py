"""What all versions of the policies have in common in one worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from cache import snapshot
from cache.memory_store import MemoryStore
from gateway.accounting.counters import Counters, CounterStore
from gateway.accounting.holds import SCHEMA as HOLDS_SCHEMA
from gateway.accounting.holds import DatabaseHolds, HoldStore, RedisHolds
from gateway.accounting.ledger import Ledger
from gateway.accounting.receipt import Receive
from gateway.accounting.request_log import log_request
from gateway.accounting.shared_accounts import SharedAccounts
from gateway.accounting.stores import SCHEMA as COUNTERS_SCHEMA
from gateway.accounting.stores import DatabaseCounters, RedisCounters
from gateway.accounting.usage_rows import SCHEMA as USAGE_SCHEMA
from gateway.accounting.usage_rows import UsageRows
from gateway.admin.live import WHAT, LiveFeed
from gateway.admin.policies import FIXED_POLICIES, PolicyControl
from gateway.admin.policy_changes import DraftThreads
from gateway.admin.requests import answer_peers
from gateway.batches.service import BatchService
from gateway.data_folder import data_folder_faults
from gateway.database.database import Database
from gateway.database.sqlite import SqliteDatabase
from gateway.fleet.board import Board
from gateway.fleet.memory import FleetMemory
from gateway.pipeline.recent_requests import RecentRequests
from gateway.processes.keys_watch import KeysWatch
from gateway.processes.status import Statuses
from gateway.processes.worker_peers import WorkerPeers
from gateway.routing.decision_log import LogFile
from gateway.routing.memory import RoutingMemory
from gateway.screening.threads import FairThreads
from gateway.settings import Settings, SettingsError
from gateway.stored.background import BackgroundResponses
from gateway.stored.object_store import SCHEMA, STORE_REMEDY, ObjectStore
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.setup import Tracing, start_tracing
from gateway.web.asgi_endpoint import Resource
from gateway.wiring.receipt_series import receipt_series
from policies import cache as policy_cache
from policies.document import Policies
from policies.responses import ResponsesSection
from policies.tenants import rules_of

logger = logging.getLogger(__name__)

SPARE_METRIC_MODELS = 32
"""Models that reloads of the policies can add to the metrics; those of more count as "-"."""


@dataclass(frozen=True, slots=True)
class CacheStore:
    """Stored answers, and the file that keeps them over a restart."""

    memory: MemoryStore
    path: Path | None

    @classmethod
    def open(cls, section: policy_cache.MemoryStore, worker: int) -> CacheStore:
        """With what the worker of this number saved before."""
        store = MemoryStore(section.max_bytes, int(section.max_bytes * section.max_tenant_share))
        path = Path(f"{section.snapshot_path}.{worker}") if section.snapshot_path else None
        if path is not None:
            snapshot.load(path, store, time.time())
            store.on_forget = lambda: snapshot.discard(path)
        return cls(store, path)

    def save(self) -> None:
        """Write the file, if there is one."""
        if self.path is not None:
            snapshot.write(self.path, self.memory)


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What all versions of the policies have in common in one worker."""

    tracing: Tracing
    metrics: Metrics
    statuses: Statuses  # of the engines and encoders, kept up to date by the caller
    policies: PolicyControl
    batches: BatchService
    worker: int = 0  # its number
    background: BackgroundResponses = field(default_factory=BackgroundResponses)
    stores: dict[str, CacheStore] = field(default_factory=dict)  # the latest, by its section of the policies
    decisions: LogFile | None = None
    objects: dict[str, ObjectStore] = field(default_factory=dict)  # by their section of the policies
    routing: RoutingMemory = field(default_factory=RoutingMemory)
    fleet: FleetMemory = field(default_factory=FleetMemory)
    screening_threads: FairThreads = field(default_factory=FairThreads)
    receivers: Sequence[Receive] = ()  # of a receipt for each request that has ended
    usage: UsageRows | None = None  # one of them; None: there is no database
    data_dir: str = ""  # folder of what survives a restart
    drafts: DraftThreads = field(default_factory=DraftThreads)
    keys: KeysWatch | None = None  # None: there is no keys file
    peers: WorkerPeers = field(default_factory=WorkerPeers)
    live: LiveFeed = field(default_factory=LiveFeed)
    recent: RecentRequests = field(default_factory=RecentRequests)  # the last requests, and those that run

    def __post_init__(self) -> None:
        self.peers.on(WHAT, lambda _: self._told())

    def _told(self) -> dict[str, Any]:
        """What the live view of another worker shows of this one."""
        entries = sum(len(store.memory) for store in self.stores.values())
        return {"policy": self.live.version, "cache_entries": entries}

    async def start(self) -> None:
        """Share limits from now on; each other part starts when it is used."""
        self.routing.ledger.accounts.start()

    async def close(self) -> None:
        """Close the stores, and export the remaining spans, with a timeout."""
        self._save_stores()
        for store in self.objects.values():
            await store.close()
        await self.routing.ledger.accounts.close()
        await self.routing.ledger.counters.close()
        await self.batches.close()
        if self.usage is not None:
            await self.usage.close()
        if self.decisions is not None:
            self.decisions.close()
        if self.keys is not None:
            self.keys.close()
        self.tracing.shutdown()

    @property
    def background_work(self) -> tuple[Resource, ...]:
        """What makes requests to the application, and what answers other workers."""
        return self.batches.runner, self.background, self.peers

    def store_faults(self) -> Mapping[str, str]:
        """What is wrong with files: of keys, of the data folder, and of each database that failed last."""
        found = dict(data_folder_faults(self.data_dir))
        if self.keys is not None and self.keys.fault:
            found["keys"] = self.keys.fault
        if fault := self.routing.ledger.accounts.fault:
            found["limits"] = fault
        faults = [
            ("batches", self.batches.fault),
            *(("objects", each.fault) for each in self.objects.values()),
            ("usage", "" if self.usage is None else self.usage.fault),
        ]
        return {name: fault for name, fault in faults if fault} | {**found}

    def use_policies(self, policies: Policies) -> None:
        """Do the background work as this version says, and show its limits."""
        self.live.version = policies.version
        tenants, tiers = policies.tenants, policies.tiers
        self.metrics.series.limits = {name: rules_of(name, tenants, tiers).limits.given for name in tenants}
        self.batches.runner.use(policies.batches)
        if self.usage is not None:
            self.usage.policy = policies.usage

    def use_app(self, app: ASGIApp) -> None:
        """Make these requests to `app`."""
        self.batches.runner.app = self.background.app = app

    def memory_store(self, section: policy_cache.MemoryStore) -> MemoryStore:
        """The store of cached answers with this section: that of the version before, if it had the same."""
        key = repr(section)
        if key not in self.stores:
            self._save_stores()
            self.stores.clear()
            self.stores[key] = CacheStore.open(section, self.worker)
        return self.stores[key].memory

    def _save_stores(self) -> None:
        for store in self.stores.values():
            store.save()

    def object_store(self, settings: Settings, section: ResponsesSection) -> ObjectStore:
        """The store of this section, the same for all versions that have it."""
        key = repr(section)
        if key not in self.objects:
            self.objects[key] = ObjectStore(_database(settings, "objects", SCHEMA, STORE_REMEDY), section)
        return self.objects[key]


def build_parts(
    settings: Settings,
    metric_models: Sequence[str],
    *,
    statuses: Statuses | None = None,
    worker: int = 0,
    policies: PolicyControl = FIXED_POLICIES,
) -> WorkerParts:
    """`worker` is its number, `metric_models` the labels of metrics. Raises SettingsError, TelemetryError."""
    metrics = Metrics(
        metric_models, settings.counter_fds, worker, SPARE_METRIC_MODELS, names_fd=settings.names_fd
    )
    metrics.set_policies(lambda: policies.state)
    known = {} if statuses is None else statuses
    decisions = (
        _open_log(settings.decision_log, settings.decision_log_max_bytes) if settings.decision_log else None
    )
    tracing = start_tracing(settings.telemetry, _version())
    batches = BatchService(settings.data_dir, settings.max_body_bytes)
    fleet = FleetMemory(None if settings.fleet_fd is None else Board(settings.fleet_fd))
    fleet.on_out, fleet.on_failure = metrics.upstream_left_out, metrics.upstream_failed
    routing = RoutingMemory(ledger=_ledger(settings, metrics))
    routing.ledger.on_refusal = metrics.series.refused
    keys = (
        KeysWatch(
            settings.keys_file,
            partial(metrics.fault, "keys", "unreadable"),
            last_good=settings.last_good_keys,
            is_logging=False,  # the supervisor does
        )
        if settings.keys_file
        else None
    )
    usage = _usage_rows(settings, metrics)
    receivers = [receipt_series(metrics), *([log_request] if settings.log_format == "json" else [])]
    if usage is not None:
        receivers.append(usage.receive)
    recent, peers = RecentRequests(), _peers(settings, worker)
    answer_peers(peers, recent)
    return WorkerParts(
        tracing,
        metrics,
        known,
        policies,
        batches,
        worker,
        decisions=decisions,
        routing=routing,
        fleet=fleet,
        data_dir=settings.data_dir,
        keys=keys,
        receivers=receivers,
        usage=usage,
        peers=peers,
        recent=recent,
        live=LiveFeed(release=_version()),
    )


def _peers(settings: Settings, worker: int) -> WorkerPeers:
    fds = settings.peer_fds
    return WorkerPeers(worker, settings.peer_paths, fds[worker] if fds else None)


def _version() -> str:
    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:  # runs from a folder
        return ""


def _ledger(settings: Settings, metrics: Metrics) -> Ledger:
    """Counts and limits are shared in Redis by replicas, in a file of the data folder by workers."""
    on_fault, at_limits = (partial(metrics.fault, part) for part in ("counts", "limits"))
    store: CounterStore | None = None
    holds: HoldStore | None = None
    if settings.replica_redis_url:
        url, prefix = settings.replica_redis_url, settings.replicas.prefix
        store = RedisCounters(url, prefix, on_fault)
        holds = RedisHolds(url, prefix, settings.replicas.timeout_ms / 1000)
    elif settings.data_dir:
        database = SqliteDatabase(settings.data_dir, "counters", COUNTERS_SCHEMA + HOLDS_SCHEMA)
        store, holds = DatabaseCounters(database), DatabaseHolds(database)
        if settings.workers == 1:
            holds = None
    elif settings.workers > 1:
        logger.warning("without PENSTOCK_DATA_DIR each of the %d workers has limits alone", settings.workers)
    counters = Counters(store, on_fault=on_fault)
    if holds is None:
        return Ledger(counters)
    return Ledger(counters, SharedAccounts(holds, counters, settings.replicas.on_failure, at_limits))


def _usage_rows(settings: Settings, metrics: Metrics) -> UsageRows | None:
    if not settings.data_dir and not settings.database_url:
        return None
    return UsageRows(_database(settings, "usage", USAGE_SCHEMA), partial(metrics.fault, "usage"))


def _database(settings: Settings, name: str, schema: str, remedy: str = "") -> Database[Any]:
    """PostgreSQL by URL, else a file in the data folder."""
    if not settings.database_url:
        return SqliteDatabase(settings.data_dir, name, schema, remedy)
    from gateway.database.postgres import PostgresDatabase  # its driver is an extra

    return PostgresDatabase(settings.database_url, name, schema, remedy)


def _open_log(path: str, max_bytes: int) -> LogFile:
    try:
        return LogFile(path, max_bytes)
    except OSError as error:
        raise SettingsError(f"PENSTOCK_DECISION_LOG={path!r} cannot be written: {error.strerror}") from None
