"""Engines of a model that run elsewhere: where they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from policies.urls import is_loopback

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
_ADDRESS = rf"^(tcp)://{_HOST}:([0-9]{{1,5}})$"

EngineAddress = Annotated[
    str,
    Meta(
        pattern=_ADDRESS,
        description="`tcp://127.0.0.1:PORT` on this machine, as `penstock engine --listen` has it.",
    ),
]


class Address(msgspec.Struct, frozen=True):
    """Where an engine listens."""

    scheme: str
    host: str  # without brackets
    port: int

    def __str__(self) -> str:
        """The same as text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def fault(self) -> str:
        """Why it cannot be used; "" if it can."""
        if not 0 < self.port < 65536:
            return f"has the port {self.port}; use 1 to 65535"
        if self.scheme == "tcp" and not is_loopback(self.host):
            return (
                "would send prompts over the network in the clear; tcp:// is for this machine: 127.0.0.1, "
                "[::1] or localhost"
            )
        return ""


def parse_address(text: str) -> Address:
    """A `tcp://HOST:PORT`. Raises ValueError."""
    found = re.search(_ADDRESS, text)
    if found is None:
        raise ValueError(f"{text!r} is no address; write tcp://127.0.0.1:PORT")
    return Address(found[1], found[2].strip("[]"), int(found[3]))


def address_faults(engine: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with a section `engine` of these keys: the key at fault, and the message behind it."""
    addresses = engine.get("addresses")
    if addresses and "replicas" in engine:
        yield (
            ("replicas",),
            " counts engine processes of this machine, and addresses names others; remove one",
        )
    seen: set[str] = set()
    for number, text in enumerate(addresses or ()):
        fault = _fault_of(text) or ("is listed twice; remove one" if text in seen else "")
        if fault:
            yield ("addresses", str(number)), f" {text} {fault}"
        seen.add(text)


def _fault_of(text: str) -> str:
    try:
        return parse_address(text).fault
    except (TypeError, ValueError):  # its pattern is reported already
        return ""
