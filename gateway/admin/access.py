"""Who may use the endpoints under /admin, and from where."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from gateway.auth import KeyRing, Principal
from gateway.errors import Forbidden
from gateway.web.http_call import HttpCall
from policies.tenants import AdminSection

OWN_HEADER = "x-penstock-console"
"""Sent by our own clients with each change. A form of another site's page cannot send it."""
_HOST = re.compile(r"([a-zA-Z0-9.]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?")
OWN_SITES = ("", "same-origin", "none")
"""What browsers say of a request by our own page, and by the address bar; other clients say nothing."""

FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Headers of proxies, whose clients may be anywhere."""


class AdminAccess:
    """The policies' `admin.principals`; without any API key, every caller on the loopback interface.

    A key travels in a header, never in a cookie, so another site's page has nothing to use. Without keys
    such a page is kept out by its `Host` (after DNS rebinding), its `Origin`, which an image has not, its
    `Sec-Fetch-Site`, and our header.
    """

    def __init__(self, keys: KeyRing, admin: AdminSection) -> None:
        self._keys = keys
        self._admin = admin

    def look(self, call: HttpCall) -> Principal:
        """The caller, who may read everything. Raises Unauthorized or Forbidden."""
        principal = self._keys.identify(call.authorization)
        if self._keys.is_open:
            _check_loopback(call)
        elif principal.tenant not in self._admin.principals:
            raise Forbidden(
                f"This is for operators: the policies' admin.principals do not name {principal.tenant!r}.",
                code="administration_forbidden",
            )
        return principal

    def change(self, call: HttpCall) -> Principal:
        """The caller, who may change something. Raises Unauthorized, Forbidden or InvalidRequest."""
        principal = self.look(call)
        call.check_media_type()
        if self._keys.is_open and not call.read_header(OWN_HEADER):
            raise Forbidden(
                f"Without API keys a change needs the header {OWN_HEADER!r}, with any value: other sites' "
                "pages cannot send it.",
                code="administration_forbidden",
            )
        return principal


def _check_loopback(call: HttpCall) -> None:
    """Raise Forbidden where a page of another site may have sent the request."""
    host, origin = call.read_header("host"), call.read_header("origin")
    if not _is_loopback(host):
        raise Forbidden(
            "Without API keys, /admin answers only to this machine: use http://localhost, or set API keys.",
            param="host",
            code="administration_forbidden",
        )
    if through := [name for name in FORWARDED if call.read_header(name)]:
        raise Forbidden(
            "Without API keys, /admin answers only to this machine. A header tells of a proxy: set API keys.",
            param=through[0],
            code="administration_forbidden",
        )
    is_other = bool(origin) and urlsplit(origin).netloc != host
    if is_other or call.read_header("sec-fetch-site") not in OWN_SITES:
        raise Forbidden(
            "Without API keys, /admin does not answer to pages of other sites.",
            param="origin",
            code="administration_forbidden",
        )


def _is_loopback(host: str) -> bool:
    """Whether a `Host` header names this machine."""
    if (found := _HOST.fullmatch(host)) is None:
        return False
    name = found[1].strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
