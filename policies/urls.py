"""Checks of URLs that their pattern cannot express: the host and the port."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from policies.services import SERVICES


def url_fault(url: str) -> str:
    """What is wrong with the host or port of an http(s) URL, as in "has …"; "" when nothing is.

    It never quotes the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "has a malformed IPv6 address; write it as http://[ADDRESS]:PORT"
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return "has a port that is not a number from 1 to 65535"
    if not _is_host(parts.hostname or "", is_ipv6="[" in parts.netloc.rpartition("@")[2]):
        return "has no valid host; write a host name or an IP address"
    return ""


_ENDPOINTS = (
    "/chat/completions", "/completions", "/responses", "/embeddings", "/messages", "/models", "/converse",
    "/moderations",
)  # fmt: skip


def api_url_fault(url: str) -> str:
    """The same of the base URL of an API, to which paths of requests are added."""
    path = url.rstrip("/")
    for endpoint in _ENDPOINTS:
        if path.lower().endswith(endpoint):
            return f"ends in {endpoint}, which is added to it; remove that, as in https://HOST/v1"
    if found := re.search(r"(?<!:)/models/[^/]+$|:\w*generateContent$", path):
        return f"ends in {found[0]}: name the model with the key `model`, and remove that"
    return url_fault(url) or _service_fault(path)


_ANY_PATH = ("deepseek", "sglang", "vllm")
"""Services that answer without the path as well, and addresses where another server may be."""


def _service_fault(url: str) -> str:
    """A known service's host alone, although its API is at a path."""
    for name, service in SERVICES.items():
        if url.lower() == _origin(service.base_url) != service.base_url and name not in _ANY_PATH:
            return f"lacks the API's path; write {service.base_url}, or `service: {name}` in its place"
    return ""


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_host(host: str, *, is_ipv6: bool) -> bool:
    try:
        if is_ipv6 or re.fullmatch(r"[0-9.]+", host):
            ipaddress.ip_address(host)
        else:
            host.encode("idna")
    except ValueError:
        return False
    return is_ipv6 or re.fullmatch(r"[\w.-]+", host) is not None


def is_loopback(host: str) -> bool:
    """True when only this machine can connect to the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
