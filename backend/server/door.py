"""Who may talk to a server from other machines. Nothing here waits: the server has steps to compute."""

from __future__ import annotations

import secrets
import selectors
import socket
import ssl
import time

import msgspec

from backend.errors import ConfigError, FrameError
from backend.server.connections import ConnectionEnded
from backend.server.endpoints import tls_fault
from backend.server.token_proof import (
    MAX_PROOF_BYTES,
    NONCE_BYTES,
    Challenge,
    Proof,
    TurnedAway,
    is_proof,
)
from backend.server.wire import FrameReader, encode_message

ADMISSION_LIMIT_S = 10.0
"""For the TLS handshake and the proof together."""
MAX_NEWCOMERS = 64
"""Connections that have not shown yet who they are; the oldest gives way to one more."""

LEFT = "left without a word"
"""A reason to forget a peer without a line in the log: probes of a port do so every few seconds."""

_PROOFS = msgspec.msgpack.Decoder(Proof)


class DoorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a server asks of its peers and shows them. Paths are of PEM files."""

    certificate: str = ""  # "": plain TCP
    key: str = ""
    ca: str = ""  # "": peers need no certificate
    token: str = ""  # "": peers need none

    def __repr__(self) -> str:
        """Without the token."""
        return f"DoorConfig({self.certificate!r})"


class Door:
    """Turns sockets into newcomers, and tells when they have shown enough."""

    def __init__(self, config: DoorConfig) -> None:
        """Raises ConfigError for files that cannot be used."""
        self.token = config.token
        self.tls = _tls(config) if config.certificate else None

    def greet(self, sock: socket.socket, peer: str) -> Newcomer:
        """The peer at a socket that was just accepted. Raises OSError when it has gone already."""
        sock.setblocking(False)
        sock.getpeername()  # raises after a reset, where wrapping would lose the socket unclosed
        if self.tls is not None:
            sock = self.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return Newcomer(sock, peer, self.token)


class Newcomer:
    """A peer that has not shown yet who it is. `advance` at each of its `events`, until it is admitted."""

    def __init__(self, sock: socket.socket, peer: str, token: str) -> None:
        self.sock = sock
        self.peer = peer
        self.events = selectors.EVENT_READ
        self.deadline_s = time.monotonic() + ADMISSION_LIMIT_S
        self._is_shaking = isinstance(sock, ssl.SSLSocket)
        self._is_silent = self._is_shaking  # has sent nothing yet
        self._token = token
        self._challenge: Challenge | None = None
        self._reader = FrameReader(MAX_PROOF_BYTES)

    def advance(self) -> bool:
        """Whether it is admitted. Raises ConnectionEnded with the reason why it never will be."""
        try:
            if self._is_shaking and isinstance(self.sock, ssl.SSLSocket):
                self._listen()
                self.sock.do_handshake()
                self._is_shaking, self.events = False, selectors.EVENT_READ
            return not self._token or self._prove()
        except ssl.SSLWantWriteError:
            self.events = selectors.EVENT_WRITE
        except (ssl.SSLWantReadError, BlockingIOError):
            self.events = selectors.EVENT_READ
        except ssl.SSLError as error:
            raise ConnectionEnded(f"no TLS: {tls_fault(error)}") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConnectionEnded(LEFT if self._is_silent else reason) from None
        except (FrameError, msgspec.MsgspecError):
            raise ConnectionEnded("sent something else than a proof that it has the token") from None
        return False

    def _listen(self) -> None:
        """Raise ConnectionEnded for a peer that left before it sent anything."""
        if self._is_silent:
            # An SSLSocket's own `recv` cannot peek.
            self._is_silent = not socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
        if self._is_silent:
            raise ConnectionEnded(LEFT)

    def _prove(self) -> bool:
        """Ask for the proof once; True when it has come."""
        if self._challenge is None:
            self._challenge = Challenge(secrets.token_bytes(NONCE_BYTES))
            self._send(self._challenge)
        data = self.sock.recv(MAX_PROOF_BYTES)
        if not data:
            raise ConnectionEnded("left without a proof that it has the token")
        frames = self._reader.feed(data)
        if not frames:
            return False
        if len(frames) > 1 or not is_proof(_PROOFS.decode(frames[0]), self._token, self._challenge):
            self._send(TurnedAway("the token is another"))
            raise ConnectionEnded("has another token")
        return True

    def _send(self, message: msgspec.Struct) -> None:
        """The socket's buffer is empty, and has room for it."""
        frame = encode_message(message)
        if self.sock.send(frame) < len(frame):
            raise ConnectionEnded("takes no bytes")


def _tls(config: DoorConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a connection lasts for days: none is resumed
    try:
        context.load_cert_chain(config.certificate, config.key, password="")
    except OSError as error:
        what = f"the certificate {config.certificate!r} with the key {config.key!r}"
        raise ConfigError(f"{what} cannot be used: {tls_fault(error)}") from None
    if config.ca:
        try:
            context.load_verify_locations(config.ca)
        except OSError as error:
            raise ConfigError(f"the CAs in {config.ca!r} cannot be used: {tls_fault(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context
