"""API keys: from key to principal. Keys are held as SHA-256 digests, and looked up by them."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType

from gateway.errors import Unauthorized
from gateway.keys_file import KeyRecord, KeySet, LiveKeys, read_keys
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
    key_id: str = ""  # of the key that has asked; "": one of the tenant's


ANONYMOUS = Principal(tenant="default", key_id="")
"""Every caller, when no key is configured."""


_ID_PREFIX = "key-"


def tenant_id(key: str) -> str:
    """The tenant of an API key that the policies give to none: `key-` and 8 hex digits of its SHA-256."""
    return _ID_PREFIX + sha256(key.encode()).hexdigest()[:8]


class KeyRing:
    """The known keys. Without any, every caller is `ANONYMOUS` (the CLI then binds loopback only)."""

    def __init__(
        self,
        keys: Iterable[str],
        tenants: Mapping[str, str] = MappingProxyType({}),
        live: LiveKeys | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tenants`: names of tenants that have several keys, or a name, by `key-` and the key's id.

        `live`: the keys of the keys file, which come before `keys` with the same digest.
        """
        self._tenants, self._live, self._clock = tenants, live, clock
        self._salts: dict[str, str] = {}
        self._configured: dict[bytes, Principal] = {}
        for key in dict.fromkeys(keys):
            digest, own = sha256(key.encode()).digest(), tenant_id(key)
            tenant = tenants.get(own, own)
            salt = self._salts.setdefault(tenant, digest.hex())
            self._configured[digest] = Principal(tenant, own.removeprefix(_ID_PREFIX), salt)
        self._indexed: tuple[KeySet, Mapping[str, Sequence[KeyRecord]]] | None = None

    def signature(self, data: bytes) -> bytes:
        """The signature of data that the gateway gives to callers and wants back unchanged."""
        return next(self.signatures(data))

    def signatures(self, data: bytes) -> Iterator[bytes]:
        """The signature, and those that it had before the latest changes of the keys file."""
        own = b"".join(self._configured)
        from_file = [] if self._live is None else [self._live.current.signing, *self._live.former]
        for signing in from_file or [b""]:
            yield hmac.digest(own + signing or b"open", data, "sha256")

    @property
    def is_open(self) -> bool:
        """True when no key is configured, nor a file of keys."""
        return not self._configured and self._live is None

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants of all callers that can be identified."""
        if self.is_open:
            return frozenset({ANONYMOUS.tenant})
        now_s, configured = self._clock(), (each.tenant for each in self._own())
        return frozenset(configured) | {
            name
            for name, records in self._by_tenant().items()
            if any(not each.refusal(now_s) for each in records)
        }

    @property
    def principals(self) -> list[Principal]:
        """All callers that can be identified, one for each key."""
        if self.is_open:
            return [ANONYMOUS]
        now_s, records = self._clock(), self._by_tenant().values()
        known = [self._principal(each) for found in records for each in found if not each.refusal(now_s)]
        return [*self._own(), *known]

    def principal_of(self, tenant: str, key_id: str = "") -> Principal:
        """The principal of a tenant that was identified before, by this key or else by another of its keys.

        Raises Unauthorized if all of them are gone.
        """
        known = [each for each in ([ANONYMOUS] if self.is_open else self._own()) if each.tenant == tenant]
        now_s = self._clock()
        records = self._by_tenant().get(tenant, ())
        known += [self._principal(record) for record in records if not record.refusal(now_s)]
        for principal in known:
            if principal.key_id == key_id:
                return principal
        if known:
            return known[0]
        raise Unauthorized("The API key of this request's tenant is no longer configured.")

    def caller(self, authorization: str, internal: InternalCaller | None) -> Principal:
        """The principal of a client, or of a request that the gateway makes itself. Raises Unauthorized."""
        if internal is not None:
            return self.principal_of(internal.tenant, internal.key_id)
        return self.identify(authorization)

    def identify(self, authorization: str) -> Principal:
        """The principal of an `Authorization` header. Raises Unauthorized."""
        if self.is_open:
            return ANONYMOUS
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise _refused(
                "No API key given: send it as 'Authorization: Bearer <key>' or 'x-api-key: <key>'."
            )
        # Looked up by digest, so the time tells nothing about the key, and does not grow with their number.
        digest = sha256(key.strip().encode("utf-8", "surrogatepass")).digest()
        record = None if self._live is None else self._live.current.by_digest.get(digest)
        if record is not None:
            if refusal := record.refusal(self._clock()):
                raise _refused(f"{refusal} Ask the operator of this gateway for another one.")
            return self._principal(record)
        if (found := self._configured.get(digest)) is None:
            raise _refused("Incorrect API key provided. Check the key against those that this gateway knows.")
        return found

    def _own(self) -> list[Principal]:
        """The principals of the configured keys that the file does not have."""
        in_file: Container[bytes] = () if self._live is None else self._live.current.by_digest
        return [principal for digest, principal in self._configured.items() if digest not in in_file]

    def _principal(self, record: KeyRecord) -> Principal:
        tenant = self._tenant(record)
        salt = self._salts.get(tenant) or sha256(tenant.encode()).hexdigest()
        return Principal(tenant, record.id.removeprefix(_ID_PREFIX), salt)

    def _tenant(self, record: KeyRecord) -> str:
        return record.tenant or self._tenants.get(record.id, record.id)

    def _by_tenant(self) -> Mapping[str, Sequence[KeyRecord]]:
        """The records of each tenant, collected once for each content of the file."""
        if self._live is None:
            return {}
        current = self._live.current
        if self._indexed is None or self._indexed[0] is not current:
            found: dict[str, list[KeyRecord]] = {}
            for record in current.by_digest.values():
                found.setdefault(self._tenant(record), []).append(record)
            self._indexed = current, found
        return self._indexed[1]


def _refused(message: str) -> Unauthorized:
    return Unauthorized(message, headers={"www-authenticate": "Bearer"})


def key_ring(settings: Settings, live: LiveKeys | None = None) -> KeyRing:
    """The keys with the tenants that the policies give them to; `live`: what a watcher keeps up to date.

    Without it the keys file, if there is one, is read. Raises KeysFileError.
    """
    if live is None and settings.keys_file:
        live = LiveKeys(read_keys(settings.keys_file))
    return KeyRing(settings.api_keys, settings.key_tenants, live)
