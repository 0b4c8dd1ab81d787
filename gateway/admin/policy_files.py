"""The folder of policies as operators see and change it: texts without secrets, writes that are whole."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from gateway.errors import InvalidRequest
from gateway.processes.policy_watch import without_wait
from gateway.settings import DEFAULT_POLICIES
from policies.errors import Place, PolicyError, Problem
from policies.load import policy_files
from policies.masking import masked
from policies.nodes import MAX_FILE_BYTES
from policies.redaction import HIDDEN, hidden

logger = logging.getLogger(__name__)

JOURNAL = ".apply.journal"
"""What files held before a change that is being made, and what they are to hold."""
_NEW_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\.yaml")


Texts = Mapping[Path, bytes | None]
"""What files hold; None: there is no such file."""
NOTHING: Texts = {}


class PolicyFile(msgspec.Struct, frozen=True):
    """One file. Its digest is of what is shown: it tells whether that is still what is there."""

    name: str
    text: str = ""
    digest: str = ""
    locked: str = ""  # why it cannot be changed here
    note: str = ""  # what else to know of it


class PolicyFolder:
    """A folder of YAML files, or one file. Its methods block."""

    def __init__(self, path: Path, secrets: Collection[str] = ()) -> None:
        """`secrets` are shown in no text."""
        self.path = path
        self._secrets = secrets
        self._shown: dict[Path, tuple[tuple[Path, bytes], PolicyFile]] = {}

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.path.parent if self.path.is_file() else self.path

    @property
    def locked(self) -> str:
        """Why nothing can be written; "" where it can."""
        if self.path == DEFAULT_POLICIES.absolute():
            return "These policies ship with Penstock: serve a folder of your own with --policies DIR."
        if os.access(self.folder, os.W_OK | os.X_OK):
            return ""
        with contextlib.suppress(OSError):
            if os.statvfs(self.folder).f_flag & os.ST_RDONLY:
                return f"{self.folder} is on a file system that is read-only."
        return f"The user that the gateway runs as may not write into {self.folder}."

    def hidden(self, text: str) -> str:
        """The text without the gateway's secrets, and without what no JSON holds of a file's name."""
        return hidden(_unicode(text), self._secrets)

    def texts(self) -> dict[Path, bytes]:
        """What each file holds. Raises PolicyError for one that cannot be read, and without any."""
        return {path: _read(path) for path in policy_files(self.path)}

    def files(self) -> list[PolicyFile]:
        """What each file shows. Raises PolicyError as `texts`."""
        return [self._file(path, data) for path, data in self.texts().items()]

    def draft(self, changed: Mapping[str, str]) -> dict[Path, bytes]:
        """All texts, with those of a draft in their place. Raises InvalidRequest or PolicyError."""
        now = self.texts()
        return now | {self._path(name, now): text.encode() for name, text in changed.items()}

    def change(self, changed: Mapping[str, str], base: Mapping[str, str]) -> tuple[Texts, Texts]:
        """What files hold before and after a change; `base` has the digests of files as they were read.

        Raises InvalidRequest unless it may be written, or PolicyError as `texts`.
        """
        now = self.texts()
        files = {file.name: file for file in (self._file(path, data) for path, data in now.items())}
        for name in sorted({**changed, **base}):
            if (files[name].digest if name in files else "") != base.get(name, ""):
                raise _changed(name)
        after = {self._path(name, now): text.encode() for name, text in changed.items()}
        for name, text in changed.items():
            file = files.get(name, PolicyFile(name))
            reason = self.locked or file.locked or (file.note if HIDDEN in text else "")
            if reason:
                raise InvalidRequest(f"{name!r}: {reason}", param="files", code="policies_read_only")
        return {path: now.get(path) for path in after}, after

    def write(self, before: Texts, after: Texts) -> None:
        """Replace these files, one after the other, until `settle` so that the change can be undone.

        Raises InvalidRequest, also for a file that has changed.
        """
        path = self._journal
        try:
            kept = {path.name: (before[path], data) for path, data in after.items()}
            _replace(path, msgspec.json.encode(kept), is_private=True)
            for path, data in after.items():
                if _content(path) != before[path]:
                    raise _changed(path.name)
                _replace(path.resolve(), data)
        except OSError as error:
            message = f"{path.name!r} cannot be written: {error.strerror}."
            raise InvalidRequest(message, code="policies_read_only") from None
        except PolicyError:
            raise _changed(path.name) from None

    def settle(self) -> None:
        """Forget what was there before: the change is served."""
        with contextlib.suppress(OSError):
            _replace(self._journal, None)

    def put_back(self, before: Texts, after: Texts) -> list[str]:
        """Undo `write`. Returns the names of files that cannot be written, or that others have changed."""
        left, is_done = [], True
        for path, data in before.items():
            try:
                if (now := _content(path)) == after[path]:
                    _replace(path.resolve(), data)
                elif now != data:
                    left.append(path.name)
            except (OSError, PolicyError):
                left.append(path.name)
                is_done = False  # the next to change or read the folder tries again
        if is_done:
            self.settle()
        return left

    def recover(self, served: Texts = NOTHING) -> None:
        """Undo a change whose process has ended within it, unless these texts, which are served, have it.

        Raises PolicyError for files that are left half-way.
        """
        if os.path.lexists(self._journal):
            with contextlib.suppress(InvalidRequest), self.alone(served):  # else it is being made
                pass

    @property
    def _journal(self) -> Path:
        return self.folder / JOURNAL

    def _undo(self, served: Texts) -> None:
        try:
            opened = os.open(self._journal, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(opened, "rb") as file:
                status = os.fstat(opened)
                is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                text = file.read() if is_own else b"{}"  # another user's could have any file written
        except OSError:
            return  # there is none, or what is there is no file
        try:
            kept = msgspec.json.decode(text, type=dict[str, tuple[bytes | None, bytes]])
        except msgspec.DecodeError:
            kept = {}
        pairs = {self.folder / Path(name).name: pair for name, pair in kept.items()}
        after = {path: new for path, (_, new) in pairs.items()}
        if after and all(served.get(path) == new for path, new in after.items()):
            self.settle()
            names = ", ".join(sorted(kept))
            logger.warning("audit: the change of %s is served and kept, though its process has ended", names)
            return
        left = self.put_back({path: old for path, (old, _) in pairs.items()}, after)
        if left and os.path.lexists(self._journal):
            raise PolicyError([self._half_way(name) for name in left])
        told = f" but {', '.join(left)}" if left else ""
        logger.warning("a change of the policies was cut off; all files are as before it%s", told)

    def _half_way(self, name: str) -> Problem:
        message = (
            "could not be put back after a change that was cut off; let the gateway write it, with room on "
            f"the disk, and reload, or else set the file right and delete {self._journal}"
        )
        return Problem(Place(str(self.folder / name)), message)

    @contextlib.contextmanager
    def alone(self, served: Texts = NOTHING) -> Iterator[None]:
        """Be the only one of all workers that changes the folder. Raises InvalidRequest where another is.

        What was cut off before is undone first, as `recover` does.
        """
        try:
            opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            message = f"{self.folder} cannot be read: {error.strerror}."
            raise InvalidRequest(message, code="policies_invalid") from None
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = "Another change of the policies is being applied: wait, then read the files again."
                raise InvalidRequest(message, status=409, code="policies_busy") from None
            except OSError as error:
                message = f"{self.folder} cannot be locked ({error.strerror}): edit its files, then reload."
                raise InvalidRequest(message, code="policies_read_only") from None
            self._undo(served)
            yield
        finally:
            os.close(opened)

    def _path(self, name: str, known: Collection[Path]) -> Path:
        """Raises InvalidRequest for a name that is neither a file's nor may become one."""
        for path in known:
            if path.name == name:
                return path
        if self.path.is_file() or not _NEW_NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name[:100]!r} is no policy file here. A new one is called NAME.yaml, with letters, "
                "digits, '.', '_' and '-', in a folder of policies.",
                param="files",
            )
        return self.path / name

    def _file(self, path: Path, data: bytes) -> PolicyFile:
        seen = path.resolve(), data  # masking a large file takes seconds
        if path not in self._shown or self._shown[path][0] != seen:
            self._shown[path] = seen, self._new_file(path, data)
        return self._shown[path][1]

    def _new_file(self, path: Path, data: bytes) -> PolicyFile:
        name, text, locked = _unicode(path.name), "", ""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            locked = "It is not UTF-8 text."
        if name != path.name:
            locked = "Its name is not UTF-8."
        elif not path.resolve().is_relative_to(self.folder.resolve()):
            locked = "It is a link to a file elsewhere, which is not shown: change it there."
        elif len(data) > MAX_FILE_BYTES:
            locked = f"It is over {MAX_FILE_BYTES} bytes."
        if locked:
            return PolicyFile(name, digest=_digest(data), locked=locked)
        shown, note = masked(text, self._secrets), ""
        if shown != text:
            pairs = zip(text.split("\n"), shown.split("\n"), strict=True)
            line = next(n for n, (own, other) in enumerate(pairs, 1) if own != other)
            note = f"line {line} holds what may be a secret; put it into a variable before it is changed here"
        return PolicyFile(name, shown, _digest(shown.encode()), note=note)


def _changed(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name[:100]!r} has changed since it was read: read it again, and change that.",
        status=409,
        param="base",
        code="policies_changed",
    )


def _content(path: Path) -> bytes | None:
    """What a file holds; None: there is none. Raises PolicyError."""
    return _read(path) if os.path.lexists(path) else None


def _read(path: Path) -> bytes:
    """At most a byte more than a policy file may have. Raises PolicyError."""
    try:
        with open(path, "rb", opener=without_wait) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(MAX_FILE_BYTES + 1)
        message = "is not a file"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    raise PolicyError([Problem(Place(str(path)), message)])


def _unicode(text: str) -> str:
    return text.encode(errors="replace").decode()


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _replace(path: Path, data: bytes | None, *, is_private: bool = False) -> None:
    """All of it or nothing, also after a crash: another file first, then a rename. Raises OSError.

    `is_private`: for this user alone, whatever was there.
    """
    if data is None:
        path.unlink(missing_ok=True)
    else:
        _rename_into(path, data, is_private)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _rename_into(path: Path, data: bytes, is_private: bool) -> None:
    for left in path.parent.glob(f".{path.name}.*.tmp"):  # by a process that was killed
        left.unlink(missing_ok=True)
    opened, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(opened, "wb") as file:
            if not is_private:  # as it has been made
                _keep_owner(path, opened)
            file.write(data)
            file.flush()
            os.fsync(opened)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _keep_owner(path: Path, opened: int) -> None:
    """Give a new file the owner and mode of the one that it replaces."""
    try:
        old = path.lstat()
    except FileNotFoundError:
        os.fchmod(opened, 0o644)
        return
    own = os.fstat(opened)
    if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(opened, old.st_uid, old.st_gid)
    os.fchmod(opened, stat.S_IMODE(old.st_mode))
