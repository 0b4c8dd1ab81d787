"""Hosts that are reached without a proxy, as the variable NO_PROXY names them."""

from __future__ import annotations

import ipaddress
import re


def is_unproxied(host: str, port: int, no_proxy: str) -> bool:
    """True when NO_PROXY names the host, a parent domain, a network that contains it, or "*"."""
    for entry in no_proxy.lower().replace(",", " ").split():
        found = re.fullmatch(r"\[(.*)\](?::(\d+))?|([^:]*):(\d+)", entry)
        name = (found[1] or found[3]) if found else entry
        wanted_port = (found[2] or found[4]) if found else None
        name = name.removeprefix("*.").removeprefix(".")
        if wanted_port and int(wanted_port) != port:
            continue
        if name in ("*", host) or host.endswith(f".{name}") or _is_in_network(host, name):
            return True
    return False


def _is_in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:  # a host name
        return False
