"""The file of API keys: JSON lines with the SHA-256 of each key, its tenant, its end and a note; never a key.

Reading it tells no key, but it decides who may ask: like a private key it must be its owner's alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.settings import SettingsError

MAX_BYTES = 64 << 20
MAX_FORMER = 16
"""Contents before the current one whose signatures are still good; see `LiveKeys`."""
_ID = re.compile(r"key-[0-9a-f]{8}")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

_REMEDY = (
    "each line is an object with sha256, and maybe id, tenant, note, and the times created, expires, revoked "
    "as in 2027-01-31T00:00:00Z"
)
_Time = Annotated[datetime, Meta(tz=True)]


class KeysFileError(SettingsError):
    """The file cannot be used; the message names it and the remedy, and quotes no digest."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of the file."""

    sha256: str  # 64 hex digits
    id: str = ""  # `key-` and 8 hex digits; "": those of `sha256`. A key that replaces another one has its id
    tenant: str = ""  # "": what the policies say, else the id
    created: _Time | None = None
    expires: _Time | None = None
    revoked: _Time | None = None
    note: Annotated[str, Meta(max_length=200)] = ""

    def refusal(self, now_s: float) -> str:
        """Why the key is no longer good, in words for its holder; "" while it is."""
        if self.revoked is not None:
            return f"This API key was revoked on {time_text(self.revoked)}."
        if self.expires is not None and self.expires.timestamp() <= now_s:
            return f"This API key expired on {time_text(self.expires)}."
        return ""


@dataclass(frozen=True, slots=True)
class KeySet:
    """What the file held at one moment."""

    by_digest: Mapping[bytes, KeyRecord]
    signing: bytes  # made of all digests: no holder of some of the keys can compute it
    data: bytes  # the file's

    @classmethod
    def of(cls, data: bytes) -> KeySet:
        """The records of the file by the digest of their key. Raises ValueError."""
        by_digest = {bytes.fromhex(each.sha256): each for each in parse_keys(data)}
        return cls(by_digest, sha256(b"".join(sorted(by_digest))).digest(), data)

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants that the file names."""
        return frozenset(each.tenant for each in self.by_digest.values() if each.tenant)


class LiveKeys:
    """The contents in force, which a watcher replaces, and what signed before the last changes."""

    def __init__(self, current: KeySet) -> None:
        self.current = current
        self.former: deque[bytes] = deque(maxlen=MAX_FORMER)

    def use(self, found: KeySet) -> None:
        """Put other contents in force, for all requests that begin from now on."""
        if found.signing != self.current.signing:
            self.former.appendleft(self.current.signing)
        self.current = found


def id_of(digest: str) -> str:
    """The id of a key with this SHA-256, unless its record names another."""
    return f"key-{digest[:8]}"


def time_text(time: datetime) -> str:
    """A time as users read it: to the second, with its zone."""
    return time.isoformat(" ", "seconds").replace("+00:00", " UTC")


def read_keys(path: str) -> KeySet:
    """The contents of the file. Raises KeysFileError."""
    with naming(path):
        return KeySet.of(_read(path))


def read_records(path: str) -> list[KeyRecord]:
    """The records in the order of the lines; none of an empty file. Raises KeysFileError."""
    with naming(path):
        data = _read(path)
        return parse_keys(data) if data.strip() else []


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Raise KeysFileError, which names the file, for OSError and ValueError."""
    try:
        yield
    except FileNotFoundError:
        remedy = "make it with `penstock keys new`, or unset PENSTOCK_KEYS_FILE"
        raise KeysFileError(f"the keys file {path!r} does not exist: {remedy}") from None
    except OSError as error:
        raise KeysFileError(f"the keys file {path!r} cannot be used: {error.strerror}") from None
    except ValueError as error:
        raise KeysFileError(f"the keys file {path!r} {error}") from None


def check_owner(status: os.stat_result) -> None:
    """Raise ValueError for what others can read or change.

    A group may read what belongs to root, as in a mounted Kubernetes secret.
    """
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is not a regular file")
    if status.st_uid not in (0, os.geteuid()):
        raise ValueError(f"belongs to the user {status.st_uid}, not to the one that runs this: chown it")
    forbidden = 0o037 if status.st_uid == 0 != os.geteuid() else 0o077
    if mode := stat.S_IMODE(status.st_mode) & forbidden:
        has = stat.S_IMODE(status.st_mode)
        raise ValueError(f"has mode {has:04o}, and others must not have {mode:03o} of it: chmod 600 it")


def parse_keys(data: bytes) -> list[KeyRecord]:
    """The records with their ids filled in, in the order of the lines. Raises ValueError."""
    found: list[KeyRecord] = []
    lines_by_digest: dict[str, int] = {}
    tenants: dict[str, tuple[str, int]] = {}
    for number, record in _records(data):
        if (first := lines_by_digest.setdefault(record.sha256, number)) != number:
            raise ValueError(f"line {number}: has the sha256 of line {first} again; remove one of them")
        tenant, first = tenants.setdefault(record.id, (record.tenant, number))
        if tenant != record.tenant:
            raise ValueError(
                f"line {number}: id {record.id!r} has tenant {record.tenant!r}, in line {first} {tenant!r}; "
                "give both lines the same tenant, or one another id"
            )
        found.append(record)
    if not found:
        raise ValueError("holds no key: it may be half-written; make one with `penstock keys new`")
    return found


def check_tenant(name: str) -> None:
    """Raise ValueError for a name that no policy could have."""
    if not _TENANT.fullmatch(name):
        raise ValueError(
            f"tenant {name!r} must be 1 to 64 of the characters A-Z a-z 0-9 . _ - and begin with a letter or "
            "digit, as in the policies"
        )


def check_note(note: str) -> None:
    """Raise ValueError for a note that a terminal could not show as it is."""
    if len(note) > 200 or not note.isprintable():
        raise ValueError(f"note {note!r} must be at most 200 printable characters, without line ends")


def _records(data: bytes) -> Iterator[tuple[int, KeyRecord]]:
    decoder = msgspec.json.Decoder(KeyRecord)
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
            yield number, _checked(record)
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number}: {error}; {_REMEDY}") from None
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def _checked(record: KeyRecord) -> KeyRecord:
    if not _SHA256.fullmatch(record.sha256):  # not quoted: it may be a key in the wrong place
        raise ValueError(
            f"sha256 has {len(record.sha256)} characters that are not the 64 hex digits, in lower case, of a "
            "key's SHA-256; never write the key itself"
        )
    own = record.id or id_of(record.sha256)
    if not _ID.fullmatch(own):
        raise ValueError(f"id {own!r} must be key- and 8 hex digits in lower case, or be left out")
    if record.tenant:
        check_tenant(record.tenant)
    check_note(record.note)
    return record if record.id else msgspec.structs.replace(record, id=own)


def _read(path: str) -> bytes:
    """The bytes of the file, whose owner and mode are checked. Raises OSError or ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as opened:
        before = os.fstat(fd)
        check_owner(before)
        data = opened.read(MAX_BYTES + 1)
        after = os.fstat(fd)
    if len(data) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES >> 20} MiB; remove old keys from it")
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise OSError(errno.EBUSY, "it changed meanwhile; replace it with a rename")
    return data
