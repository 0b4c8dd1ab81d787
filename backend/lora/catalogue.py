"""Which adapters requests can name, the weights that each name means, and their users. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backend.errors import AdapterError
from backend.lora.info import AdapterInfo

_MAX_NAMES_IN_ERROR = 20


@dataclass(slots=True)
class _Entry:
    """An adapter that has a name or unfinished requests."""

    info: AdapterInfo  # under its first name
    last_folder: Path  # of the name that was removed last
    folders: dict[str, Path] = field(default_factory=dict)  # name → folder: copies may be in several
    num_requests: int = 0  # unfinished


class AdapterCatalogue:
    """Maps names to content hashes ("digests"), and counts the requests of each.

    A name means one adapter at a time, an adapter may have several names, and requests keep an adapter alive
    whose names were removed. A name is *lost* when its files have gone or changed since it was loaded.
    """

    def __init__(self, on_dropped: Callable[[str], None]) -> None:
        """`on_dropped` is called with the digest of an adapter that has neither names nor requests left."""
        self._on_dropped = on_dropped
        self._digests: dict[str, str] = {}  # by name
        self._entries: dict[str, _Entry] = {}  # by digest
        self._lost: set[str] = set()
        self._num_requests: Counter[str] = Counter()  # by name; removed names keep their count
        self.version = 0  # grows with every change of `infos` or `lost`

    @property
    def infos(self) -> list[AdapterInfo]:
        """Every name that requests can use."""
        return [self._info(name) for name in self._digests]

    @property
    def lost(self) -> list[str]:
        """Lost names, in order, until they are loaded again or removed."""
        return sorted(self._lost)

    def has_name(self, name: str) -> bool:
        """Whether requests can use the name."""
        return name in self._digests

    def has_digest(self, digest: str) -> bool:
        """Whether the adapter has a name or an unfinished request."""
        return digest in self._entries

    def is_named(self, digest: str) -> bool:
        """Whether new requests can use the adapter."""
        entry = self._entries.get(digest)
        return entry is not None and bool(entry.folders)

    def is_wanted(self, digest: str) -> bool:
        """Whether the adapter has an unfinished request."""
        entry = self._entries.get(digest)
        return entry is not None and entry.num_requests > 0

    def sources(self, digest: str) -> list[Path]:
        """Folders that the adapter can be read from again."""
        entry = self._entries[digest]
        return list(dict.fromkeys(entry.folders.values())) or [entry.last_folder]

    def requests(self) -> dict[str, int]:
        """Requests so far by current name, including those for other weights that it meant before."""
        return {name: self._num_requests[name] for name in self._digests}

    def add(self, info: AdapterInfo) -> AdapterInfo:
        """Give the adapter `info.digest` the name `info.name`, which may have meant another one."""
        name, folder = info.name, Path(info.path)
        entry = self._entries.setdefault(info.digest, _Entry(info, folder))
        if self._digests.get(name, info.digest) != info.digest:
            self._remove(name)
        self._digests[name] = info.digest
        self._lost.discard(name)
        self.version += 1
        entry.folders[name] = folder
        return self._info(name)

    def remove(self, name: str) -> AdapterInfo:
        """Remove a name. Raises AdapterError when no adapter has it; a lost name is forgotten then too."""
        if name in self._lost:
            self._lost.remove(name)
            self.version += 1
        if name not in self._digests:
            known = ", ".join(sorted(self._digests)[:_MAX_NAMES_IN_ERROR]) or "none"
            raise AdapterError(f"no adapter is called {name!r} here; loaded are: {known}")
        info = self._info(name)
        self._remove(name)
        return info

    def lose(self, digest: str) -> str:
        """The adapter can no longer be read: its names are lost. Returns its first name."""
        entry = self._entries[digest]
        self._lost |= entry.folders.keys()
        for name in list(entry.folders):
            self._remove(name)
        return entry.info.name

    def lose_name(self, name: str) -> None:
        """The name was used before a restart, and its adapter cannot be read now."""
        self._lost.add(name)
        self.version += 1

    def hold(self, digest: str, name: str) -> None:
        """Count a new request for the adapter under `name`."""
        self._entries[digest].num_requests += 1
        self._num_requests[name] += 1

    def release(self, digest: str) -> None:
        """A request for the adapter has ended."""
        entry = self._entries[digest]
        entry.num_requests -= 1
        self._drop_if_unused(digest)

    def _info(self, name: str) -> AdapterInfo:
        entry = self._entries[self._digests[name]]
        return msgspec.structs.replace(entry.info, name=name, path=str(entry.folders[name]))

    def _remove(self, name: str) -> None:
        self.version += 1
        digest = self._digests.pop(name)
        entry = self._entries[digest]
        entry.last_folder = entry.folders.pop(name)
        self._drop_if_unused(digest)

    def _drop_if_unused(self, digest: str) -> None:
        entry = self._entries[digest]
        if not entry.folders and not entry.num_requests:
            del self._entries[digest]
            self._on_dropped(digest)
