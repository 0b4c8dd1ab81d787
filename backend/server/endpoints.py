"""Where a process listens, as its clients see it: a Unix socket of this machine, or a TCP port of any."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from backend.errors import ConfigError

CONNECT_LIMIT_S = 5.0
"""For a TCP connection and for the TLS handshake on it, each."""
GREETING_LIMIT_S = 10.0
"""Until the first message of a peer that may be anything."""

Protocol = TypeVar("Protocol", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A socket of a process that its supervisor watches."""

    path: str
    last_retry_s: float = 0.25

    def __str__(self) -> str:
        """For messages."""
        return self.path

    async def connect(self, new_protocol: Callable[[], Protocol]) -> Protocol:
        """A new connection. Raises OSError."""
        _, protocol = await asyncio.get_running_loop().create_unix_connection(new_protocol, self.path)
        return protocol


@dataclass(frozen=True, slots=True)
class RemoteEndpoint:
    """A port of an engine that may be on another machine, where nothing of this one watches it."""

    address: str  # as the policies have it: its name in logs and metrics
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str = ""  # that its certificate must have; "": the host
    token: str = ""
    last_retry_s: float = 5.0

    def __str__(self) -> str:
        """For messages."""
        return self.address

    def __repr__(self) -> str:
        """Without the token."""
        return f"RemoteEndpoint({self.address!r})"

    async def connect(self, new_protocol: Callable[[], Protocol]) -> Protocol:
        """A new connection. Raises OSError, an ssl.SSLError and a TimeoutError included."""
        loop = asyncio.get_running_loop()
        name = (self.server_name or self.host) if self.tls is not None else None
        async with asyncio.timeout(2 * CONNECT_LIMIT_S):
            transport, protocol = await loop.create_connection(
                new_protocol,
                self.host,
                self.port,
                ssl=self.tls,
                server_hostname=name,
                ssl_handshake_timeout=None if self.tls is None else CONNECT_LIMIT_S,
            )
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return protocol


Endpoint = UnixEndpoint | RemoteEndpoint


def client_tls(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """What a client trusts and shows; paths of PEM files, "" for the system's CAs. Raises ConfigError."""
    what = f"the CAs in {ca!r}"
    try:
        context = ssl.create_default_context(cafile=ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if certificate:
            what = f"the certificate {certificate!r} with the key {key!r}"
            context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise ConfigError(f"{what} cannot be used: {tls_fault(error)}") from None
    return context


def tls_fault(error: OSError) -> str:
    """What is wrong with a PEM file, or a handshake."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
