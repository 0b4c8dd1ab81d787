"""Listening Unix sockets of the engine and encoder processes, without files that a cleaner could remove.

The supervisor binds each once and every start of its process inherits it. A client connects to the inode
through an O_PATH descriptor, as /proc/self/fd/N: the socket's folder is removed at once, so neither a full
disk nor the length of a path matters later. Where there is no /proc the folder stays until `close`.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.settings import SettingsError

_BACKLOG = 64
"""More than the workers and the supervisor, which all connect while a process starts."""


@dataclass(frozen=True, slots=True)
class BackendSocket:
    """Where one engine or encoder process listens."""

    listener: socket.socket  # inherited by the process
    path: str  # for clients
    path_fds: tuple[int, ...]  # to be inherited by clients for `path` to be valid

    @property
    def shared_path(self) -> str:
        """For clients that were started before the socket was opened, while this process lives."""
        return self.path.replace("/proc/self/", f"/proc/{os.getpid()}/", 1)


class BackendSockets:
    """The sockets by model name. Only this user can connect."""

    def __init__(self, names: Iterable[str], folders: Iterable[Path] | None = None) -> None:
        """Bind them in the first of `folders` that works. Raises SettingsError when none does."""
        self.by_name: dict[str, BackendSocket] = {}
        self._folder: Path | None = None
        self._names = [*names]
        errors: list[str] = []
        if not self._names:
            return
        for folder in _usual_folders() if folders is None else folders:
            try:
                self._open(folder)
                return
            except OSError as error:
                errors.append(f"{folder}: {error.strerror or error}")
        raise SettingsError(
            f"cannot create Unix sockets ({'; '.join(errors)}): set TMPDIR to a folder that can be written"
        )

    @property
    def fds(self) -> list[int]:
        """The descriptors that a client process inherits."""
        return [fd for each in self.by_name.values() for fd in each.path_fds]

    def close(self) -> None:
        """Close all, and remove what is on the disk."""
        for each in self.by_name.values():
            each.listener.close()
            for fd in each.path_fds:
                os.close(fd)
        self.by_name = {}
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _open(self, parent: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="penstock-", dir=parent))  # mode 0700
        self._folder = folder
        try:
            for number, name in enumerate(self._names):
                self.by_name[name] = _bind(folder, f"{number}.sock")
        except OSError:
            self.close()
            raise
        if all(each.path_fds for each in self.by_name.values()):
            self._remove_folder()


def _usual_folders() -> list[Path]:
    """Where temporary files usually go; any will do, since nothing stays there."""
    variables = [os.environ.get(name) for name in ("TMPDIR", "XDG_RUNTIME_DIR")]
    found = [Path(each) for each in (*variables, "/tmp", "/dev/shm", "/var/tmp") if each]
    return list(dict.fromkeys(found))


def _bind(folder: Path, name: str) -> BackendSocket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = folder / name
    try:
        _bind_at(listener, folder, name)
        path.chmod(0o600)
        listener.listen(_BACKLOG)
        fd = _open_inode(path)
    except OSError:
        listener.close()
        raise
    return BackendSocket(listener, str(path), ()) if fd is None else BackendSocket(listener, _proc(fd), (fd,))


def _bind_at(listener: socket.socket, folder: Path, name: str) -> None:
    """Bind through a descriptor of the folder if possible: a socket's path may have 107 bytes at most."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"{_proc(fd)}/{name}" if _has_proc() else str(folder / name))
    finally:
        os.close(fd)


def _open_inode(path: Path) -> int | None:
    """An O_PATH descriptor, by which the socket can be reached after it was unlinked; None: not possible."""
    return os.open(path, os.O_PATH) if _has_proc() else None


def _has_proc() -> bool:
    return hasattr(os, "O_PATH") and os.path.isdir("/proc/self/fd")


def _proc(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
