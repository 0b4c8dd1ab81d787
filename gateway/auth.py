"""API keys: from key to principal. Keys are held as SHA-256 digests and compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType

from gateway.errors import Unauthorized
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request, for which tenant. `tenant_salt` separates tenants in the KV prefix cache."""

    tenant: str
    key_id: str  # first 8 hex digits of the key's digest: safe to log
    tenant_salt: str = ""


@dataclass(frozen=True, slots=True)
class InternalCaller:
    """For whom the gateway makes a request itself: a tenant whose key has been checked before."""

    tenant: str
    priority: int = 0  # of its sequences in an engine, as `backend.types.Request` has it
    endpoint_label: str = ""  # in metrics; "": the endpoint's own
    is_admitted: bool = False  # the tenant's limits have been asked


ANONYMOUS = Principal(tenant="default", key_id="")
"""Every caller, when no key is configured."""


_ID_PREFIX = "key-"


def tenant_id(key: str) -> str:
    """The tenant of an API key that the policies give to none: `key-` and 8 hex digits of its SHA-256."""
    return _ID_PREFIX + sha256(key.encode()).hexdigest()[:8]


class KeyRing:
    """The configured keys. Without any, every caller is `ANONYMOUS` (the CLI then binds loopback only)."""

    def __init__(self, keys: Iterable[str], tenants: Mapping[str, str] = MappingProxyType({})) -> None:
        """`tenants`: names of tenants that have several keys, or a name, by `key-` and the key's id."""
        entries: list[tuple[bytes, Principal]] = []
        for key in dict.fromkeys(keys):
            digest, own = sha256(key.encode()).digest(), tenant_id(key)
            key_id = own.removeprefix(_ID_PREFIX)
            tenant, salt = tenants.get(own, own), digest.hex()
            if tenant != own:
                salt = next((each.tenant_salt for _, each in entries if each.tenant == tenant), salt)
            principal = Principal(tenant, key_id, salt)
            entries.append((digest, principal))
        self._entries = tuple(entries)

    def signature(self, data: bytes) -> bytes:
        """The signature of data that the gateway gives to callers and wants back unchanged."""
        return hmac.digest(b"".join(digest for digest, _ in self._entries) or b"open", data, "sha256")

    @property
    def is_open(self) -> bool:
        """True when no key is configured."""
        return not self._entries

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants of all callers that can be identified."""
        return frozenset(each.tenant for _, each in self._entries) or frozenset({ANONYMOUS.tenant})

    def principal_of(self, tenant: str) -> Principal:
        """The principal of a tenant that was identified before. Raises Unauthorized if its key is gone."""
        known = [principal for _, principal in self._entries] or [ANONYMOUS]
        for principal in known:
            if principal.tenant == tenant:
                return principal
        raise Unauthorized("The API key of this request's tenant is no longer configured.")

    def caller(self, authorization: str, internal: InternalCaller | None) -> Principal:
        """The principal of a client, or of a request that the gateway makes itself. Raises Unauthorized."""
        return self.identify(authorization) if internal is None else self.principal_of(internal.tenant)

    def identify(self, authorization: str) -> Principal:
        """The principal of an `Authorization` header. Raises Unauthorized."""
        if not self._entries:
            return ANONYMOUS
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized(
                "No API key given: send it as 'Authorization: Bearer <key>' or 'x-api-key: <key>'.",
                headers={"www-authenticate": "Bearer"},
            )
        digest = sha256(key.strip().encode("utf-8", "surrogatepass")).digest()
        found = None
        for known, principal in self._entries:  # no early exit: the time must not depend on which key matches
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise Unauthorized(
                "Incorrect API key provided. Check the key against those that this gateway was started with.",
                headers={"www-authenticate": "Bearer"},
            )
        return found


def key_ring(settings: Settings) -> KeyRing:
    """The keys with the tenants that the policies give them to."""
    return KeyRing(settings.api_keys, settings.key_tenants)
