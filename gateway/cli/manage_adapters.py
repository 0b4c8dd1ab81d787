"""`penstock adapters list | load | unload`: manages a running gateway's adapters over its HTTP API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, TextIO

from gateway.cli.connection import Connection
from gateway.cli.terminal_chat import error_message

_TIMEOUT_S = 120.0
_ARGUMENTS = {"base_model": "--base", "lora_name": "NAME", "lora_path": "PATH"}
"""Names on the command line of the API's fields."""


class AdapterCommand:
    """The adapters of one gateway."""

    def __init__(self, url: str, api_key: str, out: TextIO) -> None:
        """`url` is the gateway's, with or without /v1. Raises SettingsError when it is invalid."""
        self._connection = Connection(url, api_key, _TIMEOUT_S)
        self._out = out

    def list(self) -> int:
        """Print each adapter and its base model."""
        entries = self._call("GET", "/v1/models", None)["data"]
        for entry in entries:
            if "parent" in entry:
                self._out.write(f"{entry['id']}  on {entry['parent']}\n")
        return 0

    def load(self, name: str, path: str, base: str | None, *, force: bool = False) -> int:
        """Load the adapter in the folder `path` as `name`, replacing one of that name."""
        body: dict[str, str | bool] = {"lora_name": name, "lora_path": path}
        body |= ({"base_model": base} if base else {}) | ({"force": True} if force else {})
        entry = self._call("POST", "/v1/load_lora_adapter", body)
        self._out.write(f"{entry['id']} is served on {entry['parent']}\n")
        return 0

    def unload(self, name: str, base: str | None) -> int:
        """Unload the adapter; running requests finish."""
        body = {"lora_name": name} | ({"base_model": base} if base else {})
        self._call("POST", "/v1/unload_lora_adapter", body)
        self._out.write(f"{name} is unloaded\n")
        return 0

    def _call(self, method: str, path: str, body: Mapping[str, str | bool] | None) -> dict[str, Any]:
        return self._connection.call(method, path, body, _message)


def _message(answer: bytes, status: int) -> str:
    """The gateway's error message, with the invalid field under its name on the command line."""
    message = error_message(answer, status)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        param = json.loads(answer)["error"]["param"]
        return message.replace(f"'{param}'", _ARGUMENTS[param], 1)
    return message
