"""Reads the policy folder of a gateway: at its start, and again once its files are at rest and whole."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from gateway.admin.encoder_check import refuse_other_encoders
from gateway.admin.policy_files import PolicyFolder
from gateway.extras import refuse_missing_extras
from gateway.keys_file import KeysFileError, read_keys
from gateway.log import hide
from gateway.processes.policy_watch import read_at_rest
from gateway.settings import Settings
from policies.document import Policies
from policies.errors import Place, PolicyError, Problem
from policies.load import Loaded, load_folder, policy_files

logger = logging.getLogger(__name__)

Complete = Callable[[Policies], tuple[Policies, Settings]]
"""Adds the models of flags, and the settings that follow from the policies. Raises SettingsError."""


class PolicyReader:
    """One folder or file; the texts that it read last tell a cut file from a changed one."""

    def __init__(
        self, folder: Path, complete: Complete, *, checks_extras: bool = True, keys_file: str = ""
    ) -> None:
        """`checks_extras`: False where `complete` leaves out all models of the folder.

        Tenants that the keys file names are not suspected of having no key.
        """
        self._keys_file = keys_file
        self._folder = folder
        self._checks_extras = checks_extras
        self._complete = complete
        self._texts: Mapping[Path, bytes] = {}
        self._served: Mapping[Path, bytes] = {}
        self._version = ""

    def first(self) -> tuple[Policies, Settings]:
        """Read them for the start. Raises PolicyError or SettingsError."""
        PolicyFolder(self._folder).recover()
        texts = _texts(self._folder)
        loaded = load_folder(self._folder, self._tenants())
        if self._checks_extras:
            refuse_missing_extras(loaded)
        refuse_other_encoders(loaded)
        return self._keep(texts, loaded)

    def again(self) -> tuple[Policies, Settings]:
        """Read them with every check, when no file is being written. Raises as `first`; it blocks."""
        PolicyFolder(self._folder).recover(self._served)
        texts, loaded = read_at_rest(self._folder, self._checked)
        if loaded.policies.version != self._version and (problems := [*_cut_files(self._texts, texts)]):
            raise PolicyError(problems)
        return self._keep(texts, loaded)

    def on_served(self) -> None:
        """Keep a change that was applied and is served, though the process that applied it has ended."""
        self._served = self._texts
        with contextlib.suppress(PolicyError):  # the next to read tells
            PolicyFolder(self._folder).recover(self._served)

    def _checked(self) -> tuple[Mapping[Path, bytes], Loaded]:
        # Here: a start needs none of what it imports.
        from gateway.admin.policy_check import load_checked

        load = load_checked if self._checks_extras else load_folder
        return _texts(self._folder), load(self._folder, self._tenants())

    def _tenants(self) -> Collection[str]:
        with contextlib.suppress(KeysFileError):  # the log tells
            return read_keys(self._keys_file).tenants if self._keys_file else ()
        return ()

    def _keep(self, texts: Mapping[Path, bytes], loaded: Loaded) -> tuple[Policies, Settings]:
        found = self._complete(loaded.policies)
        hide(found[1].secrets)
        if not found[0].models:
            message = "defines no model, so nothing could be served; add one to the section `models`"
            raise PolicyError([Problem(Place(str(self._folder)), message)])
        for warning in loaded.warnings if loaded.policies.version != self._version else ():
            logger.warning("%s", warning)
        self._texts, self._version = texts, loaded.policies.version
        return found


def _texts(folder: Path) -> Mapping[Path, bytes]:
    try:
        return {path: path.read_bytes() for path in policy_files(folder)}
    except OSError as error:
        problem = Problem(Place(error.filename or str(folder)), f"cannot be read: {error.strerror}")
        raise PolicyError([problem]) from None


def _cut_files(before: Mapping[Path, bytes], now: Mapping[Path, bytes]) -> Iterator[Problem]:
    """Files of which only the beginning is left: a writer has ended early, or a disk is full."""
    for path, text in now.items():
        old = before.get(path, b"")
        if not text.strip() and old.strip():
            message = "is empty now; to take away what it defined, delete the file or leave a comment in it"
            yield Problem(Place(str(path)), message)
        elif len(text) < len(old) and old.startswith(text) and old[len(text) - 1 : len(text)] != b"\n":
            message = (
                f"ends in the middle of a line, after {len(text)} of the {len(old)} bytes that it had; "
                "write all of it, or end that line if nothing is missing"
            )
            yield Problem(Place(str(path), text.count(b"\n") + 1), message)
