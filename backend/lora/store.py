"""Every adapter of an engine: loading, sharing host memory and device slots among them, unloading.

Names are in `catalogue.py`, host memory in `host_cache.py`, device memory in `placement.py`; `slots.py`
decides which adapter gets a slot. Files are read beside the engine's thread; all else happens on it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from backend.errors import AdapterError, AdapterExists
from backend.lora.adapter_config import check_base
from backend.lora.adapter_weights import Adapter, Sites, read_adapter
from backend.lora.bounded_reader import READ_LIMIT_S, BoundedReader
from backend.lora.catalogue import AdapterCatalogue
from backend.lora.host_cache import HostCache
from backend.lora.info import AdapterInfo
from backend.lora.placement import AdapterPlacement
from backend.lora.slots import AdapterSlots
from backend.types import Plan

logger = logging.getLogger(__name__)

OnLoaded = Callable[[AdapterInfo | AdapterError], None]


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """How much of the machine adapters may take."""

    num_slots: int = 8  # adapters in one batch
    max_rank: int = 64
    host_bytes: int = 1 << 30
    read_limit_s: float = READ_LIMIT_S


@dataclass(frozen=True, slots=True)
class _Load:
    """A call of `load` whose files are being read."""

    name: str
    folder: Path
    on_loaded: OnLoaded
    replaces: bool
    force: bool
    future: Future[Adapter]


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
        placement: AdapterPlacement | None = None,
    ) -> None:
        """`bases`: names and folders of the base model; others need `force`.

        `placement`: None for one in this process alone.
        """
        self._sites = sites
        self._limits = limits
        self._dtype, self._device = dtype, device
        self._bases = bases
        self._catalogue = AdapterCatalogue(self._drop)
        self._reader: BoundedReader[Adapter] = BoundedReader(limits.read_limit_s, clock)
        self._host = HostCache(limits.host_bytes, self)
        self._placement = placement or AdapterPlacement(sites, limits.num_slots, dtype, device)
        self._loading: list[_Load] = []
        self.slots = AdapterSlots(
            limits.num_slots, self._host.ensure_loaded, self._catalogue.is_wanted, clock
        )

    @property
    def infos(self) -> list[AdapterInfo]:
        """Every adapter that requests can name."""
        return self._catalogue.infos

    @property
    def lost(self) -> list[str]:
        """Names whose files have gone or changed, until they are loaded again or unloaded."""
        return self._catalogue.lost

    @property
    def version(self) -> int:
        """Grows with every change of `infos` or `lost`."""
        return self._catalogue.version

    @property
    def slots_version(self) -> int:
        """Grows when a layer gets other memory for its slots."""
        return self._placement.version

    @property
    def is_busy(self) -> bool:
        """Whether files are being read or wait for it: `poll` has work."""
        return bool(self._loading) or self._host.is_reading

    @property
    def host_bytes(self) -> int:
        """Host memory in use."""
        return self._host.num_bytes

    @property
    def reads_total(self) -> int:
        """Adapters that were read again after they had been evicted."""
        return self._host.reads_total

    def knows(self, digest: str) -> bool:
        """Whether new requests can use the adapter."""
        return self._catalogue.is_named(digest)

    def requests(self) -> dict[str, int]:
        """Requests so far by current name, including those for other weights that it meant before."""
        return self._catalogue.requests()

    def load(
        self,
        name: str,
        folder: Path,
        on_loaded: OnLoaded,
        *,
        replaces: bool = True,
        force: bool = False,
        digest: str = "",
    ) -> None:
        """Read an adapter in the background; `poll` registers it as `name` and calls `on_loaded`.

        Without `replaces`, a name that is taken by then gives AdapterExists. With a `digest` other weights
        are an error, and those that are known here are read from where they are.
        """
        folder = next((Path(info.path) for info in self.infos if digest and info.digest == digest), folder)
        read = partial(self._read_matching, digest, [folder]) if digest else partial(self._read, folder)
        future = self._reader.submit(read, str(folder))
        self._loading.append(_Load(name, folder, on_loaded, replaces, force, future))

    def load_now(self, name: str, folder: Path, *, force: bool = False) -> AdapterInfo:
        """Read an adapter and register it as `name`. Raises AdapterError."""
        adapter = self._reader.call(lambda: self._read(folder), str(folder))
        return self._register(name, folder, adapter, force=force)

    def restore(self, name: str, folder: Path, digest: str) -> None:
        """Load an adapter that was served before a restart. If that fails, the name is `lost`."""
        try:
            adapter = self._reader.call(lambda: self._read_matching(digest, [folder]), str(folder))
            self._register(name, folder, adapter, force=True)  # it was accepted before
        except AdapterError as error:
            logger.error("adapter %r cannot be restored: %s", name, error)
            self._catalogue.lose_name(name)

    def unload(self, name: str) -> AdapterInfo:
        """Remove the name; requests in progress finish. Raises AdapterError when no adapter has it."""
        return self._catalogue.remove(name)

    def hold(self, digest: str, name: str = "") -> None:
        """A request for the adapter, by this name, was queued: prefetch it."""
        self._catalogue.hold(digest, name)
        if digest in self._host or not self.slots.has(digest):
            self._host.ensure_loaded(digest)

    def release(self, digest: str) -> None:
        """A request for the adapter has ended."""
        self._catalogue.release(digest)

    def poll(self) -> dict[str, str]:
        """Take what was read. Returns adapters that can no longer be read: digest → error message."""
        failed: dict[str, str] = {}
        self._reader.advance()
        for call in [call for call in self._loading if call.future.done()]:
            self._loading.remove(call)
            call.on_loaded(self._finish_load(call))
        finished = self._host.take_finished()
        if finished is not None:
            digest, future = finished
            message = self._finish_read(digest, future)
            if message:
                failed[digest] = message
        self._host.start_reads()
        return failed

    def wait(self, timeout_s: float) -> None:
        """Block until a read has ended, for `timeout_s` at most."""
        futures = [call.future for call in self._loading] + self._host.pending_reads
        wait(futures, timeout_s, return_when="FIRST_COMPLETED")

    def fill(self, plan: Plan) -> None:
        """Copy the adapters of the plan's sequences into their slots; to be called before it is computed.

        Raises AdapterError when the device has no memory for one. Other requests are not affected, and the
        next step that needs the adapter tries again.
        """
        pending = self.slots.pending
        if not pending:
            return
        for slot in {chunk.sequence.adapter_slot for chunk in plan.chunks} & pending.keys():
            with self._memory_for(pending[slot]):
                self._placement.place(slot, self._host[pending[slot]])
            self.slots.filled(slot)

    def close(self) -> None:
        """Stop reading files."""
        self._reader.close()

    def may_evict(self, digest: str) -> bool:
        """Whether host memory can drop its copy: the adapter is on the device, or no request waits for it."""
        if self.slots.has(digest):
            return digest not in self.slots.pending.values()
        return not self._catalogue.is_wanted(digest)

    def read_again(self, digest: str) -> Future[Adapter] | None:
        """Start reading an evicted adapter; None when no request wants it any more."""
        if not self._catalogue.is_wanted(digest):
            return None
        folders = self._catalogue.sources(digest)
        what = " or ".join(map(str, folders))
        return self._reader.submit(lambda: self._read_matching(digest, folders), what)

    def _read(self, folder: Path) -> Adapter:
        return read_adapter(folder, self._sites, self._limits.max_rank, self._dtype)

    def _read_matching(self, digest: str, folders: list[Path]) -> Adapter:
        """The adapter from the first folder that still holds these weights. Raises AdapterError."""
        problems: list[str] = []
        for folder in folders:
            try:
                adapter = self._read(folder)
            except Exception as error:  # noqa: BLE001 - any file error fails only this adapter's requests
                problems.append(f"{folder} cannot be read any more ({error})")
                continue
            if adapter.digest == digest:
                return adapter
            problems.append(f"{folder} holds other weights now")
        raise AdapterError("; ".join(problems))

    def _finish_load(self, call: _Load) -> AdapterInfo | AdapterError:
        if self._catalogue.has_name(call.name) and not call.replaces:
            return AdapterExists(f"an adapter is called {call.name!r} already; let the new one replace it")
        try:
            return self._register(call.name, call.folder, call.future.result(), force=call.force)
        except AdapterError as error:
            return error
        except Exception as error:  # any error in a file must fail only its own call
            logger.error("adapter %r cannot be loaded", call.name, exc_info=error)
            return AdapterError(f"{call.folder} cannot be read ({type(error).__name__}); the log says more")

    def _finish_read(self, digest: str, future: Future[Adapter]) -> str:
        """Keep an adapter that was read again; an error message for its users when that failed."""
        is_needed = self._catalogue.has_digest(digest) and digest not in self._host
        if not is_needed or self.slots.has(digest):
            return ""
        error = future.exception()
        if error is None:
            self._host.put(future.result())
            return ""
        name = self._catalogue.lose(digest)
        logger.error("the adapter %r can no longer be served: %s", name, error)
        return "the adapter's files have gone or changed since it was loaded; load it again"

    def _register(self, name: str, folder: Path, adapter: Adapter, *, force: bool) -> AdapterInfo:
        try:
            check_base(folder, adapter.base, self._bases)
        except AdapterError as error:
            if not force:
                raise
            logger.warning("adapter %r is loaded by force: %s", name, error)
        self._reserve(adapter)
        info = AdapterInfo(name, adapter.digest, adapter.base, adapter.rank, adapter.num_bytes, str(folder))
        added = self._catalogue.add(info)
        self._host.put(adapter)
        return added

    def _reserve(self, adapter: Adapter) -> None:
        """Allocate slots for it on a GPU before requests come, or KV memory is measured by what is left."""
        if self._device.type != "cpu":  # there memory is given when it is first used
            with self._memory_for(adapter.digest):
                self._placement.reserve(adapter)

    @contextlib.contextmanager
    def _memory_for(self, digest: str) -> Iterator[None]:
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise AdapterError(f"no memory on {self._device} for adapter {digest}") from error

    def _drop(self, digest: str) -> None:
        """Neither a name nor a request refers to the adapter any more."""
        self.slots.forget(digest)
        self._host.discard(digest)
