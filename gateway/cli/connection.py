"""Requests of the command line to a running gateway."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.admin.access import OWN_HEADER
from gateway.cli.terminal_chat import error_message
from gateway.gateway_url import gateway_url
from gateway.settings import SettingsError


class NoAnswer(SettingsError):
    """There is no gateway, or its answer broke off."""


class Connection:
    """One gateway."""

    def __init__(self, url: str, api_key: str, timeout_s: float) -> None:
        """`url` is the gateway's, with or without /v1. Raises SettingsError when it is invalid."""
        address = gateway_url(url)
        kind = http.client.HTTPSConnection if address.is_tls else http.client.HTTPConnection
        self._connection = kind(address.host, address.port, timeout=timeout_s)
        self._prefix = address.prefix
        self._headers = {"content-type": "application/json", OWN_HEADER: "cli"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, str | bool] | None = None,
        message: Callable[[bytes, int], str] = error_message,
    ) -> dict[str, Any]:
        """The answer's JSON. Raises SettingsError: no answer, or an error that `message` puts into words."""
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, self._prefix + path, data, self._headers)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None
        finally:
            self._connection.close()
        if response.status != 200:
            raise SettingsError(message(answer, response.status))
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            where = f"{self._connection.host}:{self._connection.port}"
            raise SettingsError(f"{where} answers {path} with something else than JSON: it is no gateway")
        return found

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """The JSON of each event of a stream, until it ends. Raises NoAnswer, or SettingsError: refused."""
        try:
            self._connection.request("GET", self._prefix + path, headers=self._headers)
            response = self._connection.getresponse()
            if response.status != 200:
                raise SettingsError(error_message(response.read(), response.status))
            for line in response:
                if line.startswith(b"data: "):
                    found = json.loads(line.removeprefix(b"data: "))
                    if "error" in found:  # the policies have changed
                        raise SettingsError(found["error"]["message"])
                    yield found
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None
        finally:
            self._connection.close()

    def _no_answer(self, error: Exception) -> NoAnswer:
        where = f"{self._connection.host}:{self._connection.port}"
        return NoAnswer(f"{where} did not answer ({type(error).__name__}); is the gateway up?")
