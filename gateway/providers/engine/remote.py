"""Engines of a model that run elsewhere: how a gateway reaches them, and what it expects of them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from backend.errors import ConfigError
from backend.server.client import Refusal
from backend.server.endpoints import RemoteEndpoint, client_tls
from backend.server.engine_check import read_identity
from backend.server.engine_messages import PROTOCOL, ROLES, Hello
from gateway.checkpoints import checkpoint_folder
from gateway.settings import Settings, SettingsError
from policies.document import EngineModel
from policies.engine_addresses import Address, EngineConnection, parse_address
from policies.names import replica_name

_KV_DTYPES: Final = {"fp8": "float8_e4m3fn"}
"""What an engine calls those that have another name in the policies."""


class Door:
    """What a gateway shows to the engines of one model, and what they must show."""

    def __init__(self, model: str, engine: EngineModel, settings: Settings) -> None:
        """Raises SettingsError for files that cannot be used."""
        self._token = settings.upstream_api_keys.get(model, "")
        try:
            self._tls = tls_of(engine)
        except SettingsError as error:
            raise SettingsError(f"models.{model}.engine.connection: {error}") from None

    def endpoint(self, address: Address, server_name: str = "") -> RemoteEndpoint:
        """An engine; `server_name` is what its certificate must name in place of the host."""
        tls = self._tls if address.scheme == "tls" else None
        return RemoteEndpoint(str(address), address.host, address.port, tls, server_name, self._token)


def listed_endpoints(model: str, engine: EngineModel, settings: Settings) -> Mapping[str, RemoteEndpoint]:
    """The engines that the policies list, by the name of each. Raises SettingsError."""
    door = Door(model, engine, settings)
    return {replica_name(model, each): door.endpoint(parse_address(each)) for each in engine.addresses}


@dataclass(frozen=True, slots=True)
class Expected:
    """What an engine must serve to answer for a model."""

    vocab_size: int
    revision: str  # "": the gateway does not know it, as it has only the tokenizer
    dtype: str  # "": any
    kv_dtype: str  # "": any

    @classmethod
    def of(cls, engine: EngineModel) -> Expected:
        """By the policies and the checkpoint that they name. Raises CheckpointError."""
        vocab_size, revision = read_identity(checkpoint_folder(engine.checkpoint))
        kv_dtype = "" if engine.kv_dtype == "auto" else _KV_DTYPES.get(engine.kv_dtype, engine.kv_dtype)
        return cls(
            vocab_size,
            "" if engine.quantize is not None else revision,  # rounded weights have one of their own
            "" if engine.dtype == "auto" else engine.dtype,
            kv_dtype,
        )

    def refusal(self, hello: Hello) -> Refusal | None:
        """Why an engine cannot answer; None if it can."""
        if hello.protocol != PROTOCOL:
            return Refusal("protocol", f"its protocol is version {hello.protocol}, this gateway's {PROTOCOL}")
        if hello.role not in ROLES:
            return Refusal("role", f"it has the role {hello.role!r}, which this gateway does not know")
        return _difference(
            ("vocabulary", hello.vocab_size, self.vocab_size),
            ("revision", hello.revision, self.revision),
            ("dtype", hello.dtype, self.dtype),
            ("kv_dtype", hello.kv_dtype, self.kv_dtype),
            of="the policies",
        )


def refusal_beside(hello: Hello, other: Hello, place: str) -> Refusal | None:
    """Why an engine cannot answer in turn with the one at `place`; None if it can."""
    if hello.instance and hello.instance == other.instance:
        return Refusal("instance", f"it is the process at {place}")
    return _difference(
        ("vocabulary", hello.vocab_size, other.vocab_size),
        ("revision", hello.revision, other.revision),
        ("kv_dtype", hello.kv_dtype, other.kv_dtype),
        of=f"the engine at {place}",
    )


def _difference(*compared: tuple[str, object, object], of: str) -> Refusal | None:
    for reason, found, wanted in compared:
        if wanted and found != wanted:
            return Refusal(reason, f"its {reason} is {_short(found)}, that of {of} {_short(wanted)}")
    return None


def _short(value: object) -> str:
    """A digest by its first digits."""
    text = str(value)
    return text if len(text) < 32 else text[:12]


def tls_of(engine: EngineModel) -> ssl.SSLContext:
    """What its connections trust and show. Raises SettingsError for files that cannot be used."""
    connection = engine.connection or EngineConnection()
    try:
        return client_tls(connection.ca or "", connection.certificate or "", connection.key or "")
    except ConfigError as error:
        raise SettingsError(str(error)) from None
