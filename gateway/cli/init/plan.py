"""What the folder shall hold, read from flags and answers; what may be a secret is not quoted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from gateway.auth import tenant_id
from gateway.cli.print_keys import new_key
from gateway.settings import SettingsError
from policies.names import nearest
from policies.services import SERVICES
from policies.urls import is_loopback, url_fault

CacheChoice = Literal["none", "exact", "semantic"]
GuardChoice = Literal["none", "mask", "strict"]
CACHES: tuple[CacheChoice, ...] = ("none", "exact", "semantic")
GUARDS: tuple[GuardChoice, ...] = ("none", "mask", "strict")
EMBEDDED = ("pico-small", "pico-large")
ENCODER = "all-minilm-l6-v2"
ROUTE = "auto"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY_ID = re.compile(r"key-[0-9a-f]{8}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,79}")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_LOOKS_SECRET = re.compile(r"sk-|[A-Za-z0-9_-]{40}")


@dataclass(frozen=True, slots=True)
class Engine:
    """A checkpoint that this machine runs."""

    name: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """A model of an API."""

    name: str
    service: str  # "" for another one, at `base_url`
    base_url: str
    model: str  # its name there; "" for the same
    key_variable: str  # "" for none


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who may call. `key` is one that was made for it, shown once and written nowhere; "" for a known one."""

    name: str
    key_id: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the folder says."""

    engines: tuple[Engine, ...]
    upstreams: tuple[Upstream, ...]
    tenants: tuple[Tenant, ...]
    cache: CacheChoice
    guardrails: GuardChoice

    @property
    def chat_models(self) -> list[str]:
        """The models that answer, in the order in which they were named."""
        return [*(each.name for each in self.engines), *(each.name for each in self.upstreams)]

    @property
    def has_embedded(self) -> bool:
        """Whether the embedded pair is served, before all others."""
        return tuple(self.chat_models[:2]) == EMBEDDED

    @property
    def needs_encoder(self) -> bool:
        """Whether something compares or judges meaning."""
        return self.cache == "semantic" or self.guardrails == "strict"


def make_plan(
    models: Sequence[str],
    upstreams: Sequence[str],
    key_variables: Sequence[str],
    tenants: Sequence[str],
    *,
    embedded: bool | None = None,
    cache: CacheChoice = "exact",
    guardrails: GuardChoice = "mask",
) -> Plan:
    """The plan of these words; without any model it is the embedded ones. Raises SettingsError."""
    if embedded is None:
        embedded = not (models or upstreams)
    engines = [Engine(name, f"builtin:{name}") for name in EMBEDDED if embedded]
    engines += [engine_of(text) for text in models]
    variables = dict(map(_variable_of, key_variables))
    apis = [upstream_of(text, variables) for text in upstreams]
    if unknown := sorted(variables.keys() - {each.name for each in apis}):
        raise SettingsError(f"--key-env names {unknown[0]!r}, which is the name of no --upstream")
    names = [*(each.name for each in engines), *(each.name for each in apis)]
    if not names:
        raise SettingsError("there is no model: give --model, --upstream or --embedded")
    _check_distinct("model", [*names, ENCODER, ROUTE])
    callers = [tenant_of(text) for text in tenants]
    _check_distinct("tenant", [each.name for each in callers])
    _check_distinct("key", [each.key_id for each in callers])
    return Plan(tuple(engines), tuple(apis), tuple(callers), cache, guardrails)


def engine_of(text: str) -> Engine:
    """`NAME=CHECKPOINT_DIR`. Raises SettingsError."""
    name, value = _parts("--model", text, "NAME=CHECKPOINT_DIR")
    if value.startswith("builtin:"):
        return Engine(name, value)
    return Engine(name, str(Path(value).expanduser().resolve()))


def check_address(name: str, where: str, key: str = "the policies name a key's variable") -> None:
    """Raise SettingsError unless it is a URL or a known service; `key` says where a key is named."""
    if where in SERVICES:
        return
    if not where.startswith(("http://", "https://")):
        hint = nearest(where, SERVICES) if re.fullmatch("[a-z]{1,20}", where) else ""
        raise SettingsError(f"--upstream {name} has neither a URL nor the name of a known service{hint}")
    if not _URL.fullmatch(where):
        raise SettingsError(
            f"--upstream {name}: write the URL as http://HOST:PORT/v1 or https://HOST/v1, without user, "
            f"password or query: {key}"
        )
    if fault := url_fault(where):
        raise SettingsError(f"--upstream {name}: the URL {fault}")


def upstream_of(text: str, variables: Mapping[str, str]) -> Upstream:
    """`NAME=BASE_URL[#MODEL]`, or the name of a service for the URL. Raises SettingsError."""
    name, value = _parts("--upstream", text, "NAME=BASE_URL[#MODEL]")
    where, _, model = value.partition("#")
    where = where.rstrip("/")
    check_address(name, where, "the key is named by --key-env")
    service = next((known for known, each in SERVICES.items() if where in (known, each.base_url)), "")
    base_url = SERVICES[service].base_url if service in SERVICES else where  # type: ignore[index]
    variable = variables.get(name)
    if variable is None:
        needs_key = service not in SERVICES or SERVICES[service].needs_key  # type: ignore[index]
        is_open = not needs_key or is_loopback(urlsplit(base_url).hostname or "")
        variable = "" if is_open else _usual_variable(service or name)
    return Upstream(name, service, "" if service else where, model, variable)


def tenant_of(text: str) -> Tenant:
    """`NAME`, which gets a new key, or `NAME=key-XXXXXXXX`. Raises SettingsError."""
    name, equals, key_id = text.partition("=")
    if not _TENANT.fullmatch(name) or _KEY_ID.fullmatch(name) or _LOOKS_SECRET.search(name):
        raise SettingsError("--tenant must be a name of letters, digits, '.', '_' and '-', never a key")
    if not equals:
        key = new_key()
        return Tenant(name, tenant_id(key), key)
    if not _KEY_ID.fullmatch(key_id):  # not quoted: it may be the key itself
        raise SettingsError(
            f"--tenant {name} must be followed by =key-XXXXXXXX, as `penstock keys id` prints it"
        )
    return Tenant(name, key_id)


def variable_of(text: str) -> str:
    """The name of a variable; "" for none. Raises SettingsError, which quotes nothing."""
    if text and (not _VARIABLE.fullmatch(text) or _LOOKS_SECRET.search(text)):
        raise SettingsError(
            "--key-env must be NAME=VARIABLE with the name of a variable in capitals, such as "
            "gpt=OPENAI_API_KEY; never the key itself"
        )
    return text


def _variable_of(text: str) -> tuple[str, str]:
    name, _, variable = text.partition("=")
    return name if _NAME.fullmatch(name) else "", variable_of(variable)


def _usual_variable(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", re.sub(r"^([0-9])", r"_\1", name.upper()))[:60] + "_API_KEY"


def _parts(flag: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise SettingsError(f"{flag} must have the form {form}")
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{flag}: the name must be of letters, digits, '.', '_', '/' and '-'")
    return name, value


def _check_distinct(what: str, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise SettingsError(f"there are two of the {what} {name!r}; give one another name")
        seen.add(name)
