"""`penstock keys`: API keys for clients, and the ids by which policies, traces and logs name them."""

from __future__ import annotations

import getpass
import secrets
import sys
from collections.abc import Sequence
from typing import TextIO

from gateway import settings
from gateway.auth import tenant_id
from gateway.settings import SettingsError

_KEY_BYTES = 24


def print_ids(keys: Sequence[str], out: TextIO) -> int:
    """One line per key, in their order; the keys themselves are not printed."""
    out.writelines(f"{tenant_id(key)}\n" for key in keys)
    return 0


def print_new(out: TextIO) -> int:
    """Print a key that nothing keeps."""
    key = new_key()
    return print_key(key, tenant_id(key), out)


def print_key(key: str, key_id: str, out: TextIO) -> int:
    """The only time that it is shown, and its id."""
    out.write(f"key  {key}\nid   {key_id}\n")
    return 0


def new_key() -> str:
    """A random key, too long to guess."""
    return f"sk-{secrets.token_urlsafe(_KEY_BYTES)}"


def given_keys(*, from_stdin: bool) -> Sequence[str]:
    """The keys of stdin, else of $PENSTOCK_API_KEYS, else one that is asked for. Raises SettingsError."""
    if from_stdin:
        keys = [line.strip() for line in sys.stdin if line.strip()]
    elif not (keys := [*settings.client_keys()]) and sys.stdin.isatty():
        keys = [getpass.getpass("API key (not shown): ").strip()]
    if not keys or not all(keys):
        raise SettingsError("there is no key: set PENSTOCK_API_KEYS, or give one a line with --stdin")
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise SettingsError("a key holds characters that an HTTP header cannot carry")
    return keys
