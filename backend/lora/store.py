"""Every adapter that an engine knows: names, host memory, and the copies on the device.

Files are read and checked one at a time beside it; everything else happens on the engine's thread. Host
memory keeps the most recently used up to a limit; what waiting requests need is read again before their turn.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import torch

from backend.errors import AdapterError, AdapterExists
from backend.kernels.lora import Factors, SlotWeights, warm_up
from backend.layers.linear import Linear
from backend.lora.adapters import Adapter, Sites, read_adapter
from backend.lora.info import AdapterInfo
from backend.lora.reading import READ_LIMIT_S, Reader
from backend.lora.slots import AdapterSlots
from backend.types import Plan

logger = logging.getLogger(__name__)

OnLoaded = Callable[[AdapterInfo | AdapterError], None]


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """How much of a machine adapters may take."""

    num_slots: int = 8  # adapters in one batch
    max_rank: int = 64
    host_bytes: int = 1 << 30
    read_limit_s: float = READ_LIMIT_S


@dataclass(slots=True)
class _Known:
    """An adapter that has a name, or unfinished requests."""

    info: AdapterInfo  # by its first name
    folder: Path  # of the name that was taken away last
    folders: dict[str, Path] = field(default_factory=dict)  # by name: copies may lie in several
    num_users: int = 0  # unfinished requests

    @property
    def sources(self) -> list[Path]:
        """Where it can be read again."""
        return list(dict.fromkeys(self.folders.values())) or [self.folder]


class AdapterStore:
    """Loads, finds, places and drops adapters. One per engine."""

    def __init__(
        self,
        sites: Sites,
        limits: AdapterLimits,
        dtype: torch.dtype,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
        bases: tuple[str, ...] = (),
    ) -> None:
        """`bases`: what the base model is called, its folder perhaps; adapters of others are warned of."""
        self.reads_total = 0
        self.num_changes = 0  # grows whenever `infos` or `lost` may have become others
        self._sites = sites
        self._limits = limits
        self._dtype, self._device = dtype, device
        self._bases = bases
        warm_up(dtype, device)
        self._names: dict[str, str] = {}
        self._lost: set[str] = set()
        self._num_requests: Counter[str] = Counter()  # by name, also of those that were taken away
        self._known: dict[str, _Known] = {}
        self._host: OrderedDict[str, Adapter] = OrderedDict()
        self._host_bytes = 0
        self._placed: dict[int, set[Linear]] = {}  # layers in which a slot holds something
        self._reader: Reader[Adapter] = Reader(limits.read_limit_s, clock)
        self._loading: list[tuple[Future[Adapter], str, Path, OnLoaded, bool]] = []
        self._reading: dict[str, Future[Adapter]] = {}
        self._wanted: OrderedDict[str, None] = OrderedDict()  # to be read when there is room
        self.slots = AdapterSlots(limits.num_slots, self._is_ready, self._is_used, clock)

    @property
    def infos(self) -> list[AdapterInfo]:
        """Every adapter that can be asked for."""
        found = [self._info(name) for name in self._names]
        return [info for info in found if info is not None]

    @property
    def lost(self) -> list[str]:
        """Names whose files have gone or changed, until they are loaded anew or taken away."""
        return sorted(self._lost)

    @property
    def is_busy(self) -> bool:
        """Files are being read, or will be."""
        return bool(self._loading or self._reading or self._wanted)

    @property
    def host_bytes(self) -> int:
        """Host memory in use."""
        return self._host_bytes

    def knows(self, digest: str) -> bool:
        """A new request may ask for it."""
        known = self._known.get(digest)
        return known is not None and bool(known.folders)

    def load(self, name: str, folder: Path, on_loaded: OnLoaded, *, replaces: bool = True) -> None:
        """Read an adapter in the background; `poll` makes it known under `name` and calls `on_loaded`.

        Without `replaces` a name that an adapter has by then gives AdapterExists.
        """
        future = self._reader.submit(lambda: self._read(folder), str(folder))
        self._loading.append((future, name, folder, on_loaded, replaces))

    def load_now(self, name: str, folder: Path) -> AdapterInfo:
        """The same, waited for. Raises AdapterError."""
        return self._register(name, folder, self._reader.call(lambda: self._read(folder), str(folder)))

    def restore(self, name: str, folder: Path, digest: str) -> None:
        """Read an adapter that was served before a restart. Where that is gone, the name is `lost`."""
        try:
            adapter = self._reader.call(lambda: self._read_again(digest, [folder]), str(folder))
            self._register(name, folder, adapter)
        except AdapterError as error:
            logger.error("adapter %r cannot be restored: %s", name, error)
            self._lost.add(name)

    def unload(self, name: str) -> AdapterInfo:
        """Take the name away; requests under way finish. Raises AdapterError when nothing has that name."""
        if name in self._lost:
            self._lost.remove(name)
            self.num_changes += 1
        info = self._info(name)
        if info is None:
            known = ", ".join(sorted(self._names)[:20]) or "none"
            raise AdapterError(f"no adapter is called {name!r} here; loaded are: {known}")
        self._drop_name(name)
        return info

    def hold(self, digest: str, name: str = "") -> None:
        """A request for this adapter, by this name, was queued: it will soon be needed."""
        known = self._known[digest]
        known.num_users += 1
        self._num_requests[name] += 1
        if digest in self._host or not self.slots.has(digest):
            self._is_ready(digest)

    def release(self, digest: str) -> None:
        """A request for this adapter has ended."""
        known = self._known[digest]
        known.num_users -= 1
        if not known.num_users and not known.folders:
            self._forget(digest)

    def requests(self) -> dict[str, int]:
        """How often each name that can be asked for was, whatever weights it meant at the time."""
        return {name: self._num_requests[name] for name in self._names}

    def poll(self) -> dict[str, str]:
        """Take what was read. Returns adapters that cannot be read again, with a sentence for their users."""
        failed: dict[str, str] = {}
        self._reader.advance()
        for call in [call for call in self._loading if call[0].done()]:
            self._loading.remove(call)
            self._finish_load(*call)
        for digest in [digest for digest, future in self._reading.items() if future.done()]:
            message = self._finish_read(digest, self._reading.pop(digest))
            if message:
                failed[digest] = message
        self._read_ahead()
        return failed

    def wait(self, timeout_s: float) -> None:
        """Block until something was read, or for so long."""
        futures = [call[0] for call in self._loading] + list(self._reading.values())
        wait(futures, timeout_s, return_when="FIRST_COMPLETED")

    def fill(self, plan: Plan) -> None:
        """Copy the adapters of these sequences into their slots. Call before a step is computed.

        Raises AdapterError where memory is short. The next step that needs the adapter tries again; others
        do not suffer from it.
        """
        pending = self.slots.pending
        if not pending:
            return
        for slot in {chunk.sequence.adapter_slot for chunk in plan.chunks} & pending.keys():
            try:
                self._place(slot, self._host[pending[slot]])
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise AdapterError(f"no memory on {self._device} for adapter {pending[slot]}") from error
            self.slots.filled(slot)

    def close(self) -> None:
        """Read no more files."""
        self._reader.close()

    def _read(self, folder: Path) -> Adapter:
        return read_adapter(folder, self._sites, self._limits.max_rank, self._dtype)

    def _read_again(self, digest: str, folders: list[Path]) -> Adapter:
        """The same adapter, from the first folder that still holds it. Raises AdapterError: none does."""
        problems: list[str] = []
        for folder in folders:
            try:
                adapter = self._read(folder)
            except Exception as error:  # noqa: BLE001 - whatever became of the files, all others are served
                problems.append(f"{folder} cannot be read any more ({error})")
                continue
            if adapter.digest == digest:
                return adapter
            problems.append(f"{folder} holds other weights now")
        raise AdapterError("; ".join(problems))

    def _info(self, name: str) -> AdapterInfo | None:
        digest = self._names.get(name)
        if digest is None:
            return None
        known = self._known[digest]
        info = known.info
        return AdapterInfo(name, digest, info.base, info.rank, info.num_bytes, str(known.folders[name]))

    def _finish_load(
        self, future: Future[Adapter], name: str, folder: Path, on_loaded: OnLoaded, replaces: bool
    ) -> None:
        if name in self._names and not replaces:
            on_loaded(AdapterExists(f"an adapter is called {name!r} already; let the new one replace it"))
            return
        try:
            adapter = future.result()
        except AdapterError as error:
            on_loaded(error)
        except Exception as error:  # noqa: BLE001 - whatever a file can provoke fails its own call only
            logger.error("adapter %r cannot be loaded", name, exc_info=error)
            on_loaded(AdapterError(f"{folder} cannot be read ({type(error).__name__}); the log says more"))
        else:
            on_loaded(self._register(name, folder, adapter))

    def _finish_read(self, digest: str, future: Future[Adapter]) -> str:
        """Keep what was read again; a sentence when it is not what it was and no copy is left."""
        known = self._known.get(digest)
        if known is None or digest in self._host or self.slots.has(digest):
            return ""  # nobody asks any more, or it was loaded anew in the meantime
        error = future.exception()
        if error is None:
            self._keep(future.result())
            return ""
        self._lost |= known.folders.keys()
        for name in list(known.folders):
            self._drop_name(name)
        logger.error("the adapter %r can be served no longer: %s", known.info.name, error)
        return "the adapter's files have gone or changed since it was loaded; load it anew"

    def _register(self, name: str, folder: Path, adapter: Adapter) -> AdapterInfo:
        digest = adapter.digest
        known = self._known.get(digest)
        if not _is_for(adapter.base, self._bases):
            logger.warning(
                "adapter %r in %s names %r as its base model, and this engine serves %s: unless they are the "
                "same, its answers are worth nothing",
                name,
                folder,
                adapter.base,
                " in ".join(self._bases),
            )
        if known is None:
            info = AdapterInfo(name, digest, adapter.base, adapter.rank, adapter.num_bytes, str(folder))
            known = self._known[digest] = _Known(info, folder)
        if self._names.get(name, digest) != digest:
            self._drop_name(name)
        self._names[name] = digest
        self._lost.discard(name)
        self.num_changes += 1
        known.folders[name] = folder
        self._keep(adapter)
        info_now = self._info(name)
        assert info_now is not None
        return info_now

    def _drop_name(self, name: str) -> None:
        self.num_changes += 1
        digest = self._names.pop(name)
        known = self._known[digest]
        known.folder = known.folders.pop(name)
        if not known.folders and not known.num_users:
            self._forget(digest)

    def _forget(self, digest: str) -> None:
        del self._known[digest]
        self._wanted.pop(digest, None)
        self.slots.forget(digest)
        self._discard(digest)

    def _keep(self, adapter: Adapter) -> None:
        self._discard(adapter.digest)
        self._host[adapter.digest] = adapter
        self._host_bytes += adapter.num_bytes
        self._make_room()

    def _discard(self, digest: str) -> None:
        adapter = self._host.pop(digest, None)
        if adapter is not None:
            self._host_bytes -= adapter.num_bytes

    def _make_room(self) -> None:
        """Drop what was not used for longest: neither awaited by a request nor the only copy of its kind."""
        if self._host_bytes <= self._limits.host_bytes:
            return
        pending = set(self.slots.pending.values())
        resident = set(self.slots.resident) - pending
        for digest in list(self._host):
            if self._host_bytes <= self._limits.host_bytes:
                return
            known = self._known[digest]
            if digest in resident or not (known.num_users or digest in pending):
                self._discard(digest)

    def _is_used(self, digest: str) -> bool:
        known = self._known.get(digest)
        return known is not None and known.num_users > 0

    def _is_ready(self, digest: str) -> bool:
        """In host memory; when it is not, it will be read."""
        if digest in self._host:
            self._host.move_to_end(digest)
            return True
        if digest not in self._reading and digest not in self._wanted:
            self._wanted[digest] = None
            self._read_ahead()
        return False

    def _read_ahead(self) -> None:
        """Read what waiting requests want while host memory has room, one file at a time at least."""
        while self._wanted and not self._reading:
            self._make_room()
            if self._host_bytes > self._limits.host_bytes and self._host:
                return  # all of it is awaited; the next that is placed makes room
            digest, _ = self._wanted.popitem(last=False)
            known = self._known.get(digest)
            if known is not None and known.num_users:
                self.reads_total += 1
                self._reading[digest] = self._submit_again(digest, known.sources)

    def _submit_again(self, digest: str, folders: list[Path]) -> Future[Adapter]:
        return self._reader.submit(lambda: self._read_again(digest, folders), " or ".join(map(str, folders)))

    def _place(self, slot: int, adapter: Adapter) -> None:
        by_layer: dict[Linear, dict[int, Factors]] = {}
        for module, (down, up) in adapter.factors.items():
            site = self._sites[module]
            moved = (down.to(self._device), up.to(self._device))
            by_layer.setdefault(site.linear, {})[site.part] = moved
        placed = self._placed.setdefault(slot, set())  # true at any time: each of these calls may fail
        for linear in placed - by_layer.keys():
            assert linear.adapters is not None
            linear.adapters.clear(slot)
            placed.remove(linear)
        for linear, parts in by_layer.items():
            rank = max(len(down) for down, _ in parts.values())
            weights = self._weights(linear, rank)
            placed.add(linear)
            weights.put(slot, parts)

    def _weights(self, linear: Linear, rank: int) -> SlotWeights:
        """A layer's slots, made when the first adapter needs them, and with room for its rank."""
        weights = linear.adapters
        if weights is None:
            like = torch.empty(0, dtype=self._dtype, device=self._device)
            weights = SlotWeights(
                self._limits.num_slots, linear.in_features, linear.part_features, rank, like
            )
        elif weights.rank < rank:
            weights = weights.grown(rank)
        linear.adapters = weights
        return weights


def _is_for(base: str, names: tuple[str, ...]) -> bool:
    """Whether one of the names could be the base's. Folders of caches and of variants only contain it."""
    wanted = PurePath(base).name.casefold()
    return not names or any(wanted in name.casefold() for name in names)
