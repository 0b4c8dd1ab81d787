"""Engines of a model that run elsewhere: where they are, and what both sides show each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from policies.names import EnvironmentName, FilePath
from policies.urls import is_loopback

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
_ADDRESS = rf"^(tcp|tls)://{_HOST}:([0-9]{{1,5}})$"

EngineAddress = Annotated[
    str,
    Meta(
        pattern=_ADDRESS,
        description="`tls://HOST:PORT`, or `tcp://127.0.0.1:PORT` on this machine, as `penstock engine "
        "--listen` has it.",
    ),
]
EngineAddresses = Annotated[
    list[EngineAddress],
    Meta(
        description="Engines that run elsewhere, each started there by `penstock engine`, in place of "
        "processes here. What only computing needs (`dtype`, `quantize`, `num_pages`, …) is read there, "
        "from the policies of that machine; this gateway reads the tokenizer, and refuses an engine whose "
        "weights, vocabulary, `dtype` or `kv_dtype` are others than here, where `auto` is any."
    ),
]
EngineDns = Annotated[
    Annotated[str, Meta(pattern=rf"^((tcp|tls)://)?{_HOST}:[0-9]{{1,5}}$")] | None,
    Meta(
        description="`NAME:PORT` in place of `addresses`: an engine behind each A and AAAA record, over TLS "
        "with NAME as the server's name. The records are looked up again and again."
    ),
]


class EngineConnection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a gateway and the engines of another machine show each other before anything else."""

    ca: (
        Annotated[
            FilePath,
            Meta(description="PEM file of the CAs that sign engines' certificates. Default: the system's."),
        ]
        | None
    ) = None
    certificate: (
        Annotated[
            FilePath,
            Meta(description="PEM file of this gateway's certificate, for engines with `--ca`."),
        ]
        | None
    ) = None
    key: Annotated[FilePath, Meta(description="PEM file of the certificate's key.")] | None = None
    token_env: (
        Annotated[
            EnvironmentName,
            Meta(
                description="The variable that holds the token that the engines ask for. It is never sent: a "
                "gateway proves that it has it, by an HMAC over a nonce."
            ),
        ]
        | None
    ) = None


class Address(msgspec.Struct, frozen=True):
    """Where an engine listens."""

    scheme: str  # "tcp" or "tls"
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
                "would send prompts over the network in the clear; use tls:// (tcp:// is for this machine: "
                "127.0.0.1, [::1] or localhost)"
            )
        return ""


def parse_address(text: str) -> Address:
    """A `tls://HOST:PORT` or `tcp://HOST:PORT`. Raises ValueError."""
    found = re.search(_ADDRESS, text)
    if found is None:
        raise ValueError(f"{text!r} is no address; write tls://HOST:PORT or tcp://127.0.0.1:PORT")
    return Address(found[1], found[2].strip("[]"), int(found[3]))


def parse_dns(text: str) -> Address:
    """The same with a DNS name, where `tls` may be left out."""
    return parse_address(text if "://" in text else f"tls://{text}")


def address_faults(engine: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with a section `engine` of these keys: the key at fault, and the message behind it."""
    addresses, dns = engine.get("addresses"), engine.get("dns")
    connection = engine.get("connection") or {}
    if addresses and dns:
        yield ("dns",), " and addresses exclude each other; remove one"
    if (addresses or dns) and "replicas" in engine:
        key = "addresses" if addresses else "dns"
        yield ("replicas",), f" counts engine processes of this machine, and {key} names others; remove one"
    if connection and not (addresses or dns):
        yield ("connection",), " is for engines elsewhere; add addresses or dns"
    if bool(connection.get("certificate")) != bool(connection.get("key")):
        yield ("connection",), " has one of certificate and key; they go together"
    seen: set[str] = set()
    for number, text in enumerate(addresses or ()):
        fault = _fault_of(text, parse_address) or ("is listed twice; remove one" if text in seen else "")
        if fault:
            yield ("addresses", str(number)), f" {text} {fault}"
        seen.add(text)
    if dns and (fault := _fault_of(dns, parse_dns)):
        yield ("dns",), f" {dns} {fault}"


def _fault_of(text: str, parse: Callable[[str], Address]) -> str:
    try:
        return parse(text).fault
    except (TypeError, ValueError):  # its pattern is reported already
        return ""
