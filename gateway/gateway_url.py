"""The URL of a running gateway, as commands are given it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.settings import SettingsError


class GatewayAddress(NamedTuple):
    """What a gateway's URL says; `prefix` is its path without /v1."""

    is_tls: bool
    host: str
    port: int | None
    prefix: str


def gateway_url(text: str) -> GatewayAddress:
    """The parts of a gateway's URL. Raises SettingsError."""
    try:
        parts = urlsplit(text)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            prefix = parts.path.rstrip("/").removesuffix("/v1")
            return GatewayAddress(parts.scheme == "https", parts.hostname, parts.port, prefix)
    except ValueError:  # an invalid port or IPv6 address
        pass
    raise SettingsError(f"--url {text!r} must begin with http:// or https:// and name HOST or HOST:PORT")
