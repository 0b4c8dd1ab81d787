"""Chooses the transport of an upstream."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.providers.upstream.http_client import HttpClient
from gateway.providers.upstream.transport import NetworkOptions, UpstreamTransport


def open_transport(
    base_url: str, options: NetworkOptions, *, connect_timeout_s: float, headers: Mapping[str, str]
) -> UpstreamTransport:
    """The fast client where it suffices, else httpx. Raises SettingsError for an unreadable CA bundle."""
    if options.is_default:
        return HttpClient(base_url, connect_timeout_s=connect_timeout_s, headers=headers)
    # Imported here: most gateways never need it.
    from gateway.providers.upstream.httpx_transport import HttpxTransport

    return HttpxTransport(base_url, options, connect_timeout_s=connect_timeout_s, headers=headers)
