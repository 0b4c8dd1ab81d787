"""`penstock keys new|list|revoke|rotate`: changes of the keys file, one at a time and each whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TextIO

import msgspec

from gateway.cli.print_keys import new_key, print_key
from gateway.keys_file import (
    KeyRecord,
    KeysFileError,
    check_note,
    check_tenant,
    id_of,
    naming,
    parse_keys,
    read_records,
    time_text,
)
from gateway.settings import SettingsError

LOCK_WAIT_S = 10.0
_POLL_S = 0.02
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")


def add_key(path: str, out: TextIO, *, tenant: str = "", expires: str = "", note: str = "") -> int:
    """Add a new key, and print it: the only time. Raises SettingsError."""
    with _one_line():
        if tenant:
            check_tenant(tenant)
        check_note(note)
    now = _now()
    ends = _end(expires, now)
    with _changing(path, may_make=True) as records:
        key, digest = _unlike({each.id for each in records})
        record = KeyRecord(
            sha256=digest, id=id_of(digest), tenant=tenant, created=now, expires=ends, note=note
        )
        records.append(record)
    return print_key(key, record.id, out)


def rotate_key(path: str, out: TextIO, key_id: str, *, grace: str, expires: str = "") -> int:
    """Print a new key with the id, tenant and note of one that goes on for a while. Raises SettingsError."""
    now = _now()
    last, ends = now + _duration("--grace", grace), _end(expires, now)
    with _changing(path) as records:
        known = _known(records, key_id)
        good = [each for each in known if not each.refusal(now.timestamp())]
        if not good:
            raise SettingsError(f"{key_id} has ended: make another key with `penstock keys new`")
        key, digest = _unlike({each.id for each in records})
        fresh = msgspec.structs.replace(
            good[-1], sha256=digest, created=now, expires=ends or good[-1].expires
        )
        for each in good:
            until = last if each.expires is None else min(last, each.expires)
            records[records.index(each)] = msgspec.structs.replace(each, expires=until)
        records.append(fresh)
    return print_key(key, key_id, out)


def revoke_key(path: str, out: TextIO, key_id: str) -> int:
    """End all keys with this id now; their lines stay. Raises SettingsError."""
    with _changing(path) as records:
        for each in _known(records, key_id):
            if each.revoked is None:
                records[records.index(each)] = msgspec.structs.replace(each, revoked=_now())
    out.write(f"revoked  {key_id}\n")
    return 0


def list_keys(path: str, out: TextIO) -> int:
    """One line per key, in the order of the file. Raises KeysFileError."""
    now_s = time.time()
    rows = [("ID", "TENANT", "STATE", "CREATED", "NOTE")]
    for each in read_records(path):
        created = "-" if each.created is None else time_text(each.created)
        rows.append((each.id, each.tenant or "-", _state(each, now_s), created, each.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        out.write(f"{line.rstrip()}\n")
    return 0


def _state(record: KeyRecord, now_s: float) -> str:
    if record.revoked is not None:
        return f"revoked {time_text(record.revoked)}"
    if record.expires is None:
        return "good"
    return f"{'expired' if record.refusal(now_s) else 'until'} {time_text(record.expires)}"


def _known(records: Sequence[KeyRecord], key_id: str) -> list[KeyRecord]:
    if found := [each for each in records if each.id == key_id]:
        return found
    # Not quoted unless it is an id: it may be a key.
    shown = repr(key_id) if re.fullmatch(r"key-[0-9a-f]{8}", key_id) else "that"
    raise SettingsError(f"no key has the id {shown}: give one that `penstock keys list` shows, never a key")


def _unlike(ids: set[str]) -> tuple[str, str]:
    """A new key and its digest, with an id that is free."""
    while True:
        key = new_key()
        digest = sha256(key.encode()).hexdigest()
        if id_of(digest) not in ids:
            return key, digest


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _end(text: str, now: datetime) -> datetime | None:
    """The time that `--expires` names; None for "". Raises SettingsError."""
    if not text:
        return None
    found = now + _duration("--expires", text) if _DURATION.fullmatch(text) else _time(text)
    if found <= now:
        raise SettingsError(f"--expires {text!r} is in the past; give a later time")
    return found


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if len(text) <= len("2027-01-31"):
            found = found.replace(tzinfo=UTC)
        if found.tzinfo is not None:
            return found
    except ValueError:
        pass
    raise SettingsError(
        f"--expires {text!r} must be a duration such as 90d, a day (its begin, UTC) such as 2027-01-31, "
        "or a time with its zone such as 2027-01-31T18:00:00+01:00"
    )


def _duration(flag: str, text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if not found or (length := timedelta(**{_UNITS[found[2]]: int(found[1])})).days > 36500:
        raise SettingsError(
            f"{flag} {text!r} must be a number and s, m, h or d, such as 24h, of 100 years at most"
        )
    return length


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise SettingsError(f"--{error}") from None


@contextlib.contextmanager
def _changing(path: str, *, may_make: bool = False) -> Iterator[list[KeyRecord]]:
    """The records, which replace the file's when the block ends without an error. Raises KeysFileError."""
    target = os.path.realpath(path)  # a link stays one
    with _locked(path, target):
        is_new = may_make and not os.path.exists(target)
        records = [] if is_new else read_records(path)
        yield records
        data = b"".join(msgspec.json.encode(each) + b"\n" for each in records)
        with naming(path):
            parse_keys(data)
            _replace(target, data, None if is_new else os.stat(target))


@contextlib.contextmanager
def _locked(path: str, target: str) -> Iterator[None]:
    """Hold FILE.lock: the file itself is replaced, and another process would lock what is gone."""
    with naming(path):
        if not os.path.isdir(os.path.dirname(target)):
            raise ValueError("is in a folder that does not exist: make the folder first")
        fd = os.open(f"{target}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _lock(fd, path)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, path: str) -> None:
    give_up_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                raise KeysFileError(
                    f"the keys file {path!r} is being changed by another `penstock keys`: try again"
                ) from None
            time.sleep(_POLL_S)


def _replace(target: str, data: bytes, before: os.stat_result | None) -> None:
    """Write a complete file beside it and rename that; owner and mode stay."""
    folder, name = os.path.split(target)
    new = os.path.join(folder, f".{name}.new")
    with contextlib.suppress(FileNotFoundError):  # of one that was killed
        os.unlink(new)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as opened:
        if before is not None:
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(fd, stat.S_IMODE(before.st_mode))
        opened.write(data)
        opened.flush()
        os.fsync(fd)
    os.replace(new, target)
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
