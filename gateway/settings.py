"""Process settings, from flags and environment. This is the only file that reads the environment."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from backend.server.json_log import LOG_FORMATS
from gateway.no_proxy import is_unproxied
from policies.document import Policies
from policies.tenants import ReplicasSection
from policies.upstream import UpstreamModel
from policies.urls import is_loopback, url_fault

DEFAULT_POLICIES = Path(__file__).parents[1] / "policies" / "default"
"""What is served where neither a flag nor $PENSTOCK_POLICIES names a folder."""


class SettingsError(Exception):
    """A flag or environment variable cannot be used; the message names it and the remedy."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long one request may take, in seconds. An upstream model's limits are in its policy."""

    first_token_s: float = 120.0
    idle_s: float = 60.0
    total_s: float = 900.0
    engine_start_s: float = 30.0  # how long a request waits for an engine that is starting


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection may send before it is refused; trailers count like headers."""

    max_head_bytes: int = 64 * 1024  # request line and headers
    max_headers: int = 100
    head_timeout_s: float = 10.0  # for the whole head
    body_timeout_s: float = 60.0  # for the whole body


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where traces are exported; off without an endpoint."""

    otlp_endpoint: str = ""  # base URL as in OTEL_EXPORTER_OTLP_ENDPOINT, without /v1/traces
    otlp_protocol: str = "http/protobuf"  # or "grpc"
    otlp_headers: dict[str, str] = {}
    service_name: str = "penstock"
    sampler: str = "parentbased_traceidratio"
    sample_ratio: float = 1.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a gateway worker needs apart from the policies."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    api_keys: tuple[str, ...] = ()  # none: no authentication, loopback only
    keys_file: str = ""  # file of digests of keys, read again on change; see gateway/keys_file.py
    key_tenants: dict[str, str] = {}  # `key-XXXXXXXX` → name, of keys that policies give to a named tenant
    replicas: ReplicasSection = ReplicasSection()
    replica_redis_url: str = ""
    max_body_bytes: int = 16 * 1024 * 1024
    http: HttpLimits = HttpLimits()
    timeouts: Timeouts = Timeouts()
    drain_delay_s: float = 0.0  # not ready, but serving new requests too, before it drains
    drain_timeout_s: float = 30.0
    access_log: bool = False
    log_format: str = "text"  # or "json"
    telemetry: TelemetrySettings = TelemetrySettings()
    decision_log: str = ""  # file for `penstock replay`; "": decisions are not recorded
    decision_log_max_bytes: int = 1 << 28  # then it becomes FILE.1, of which four are kept; 0: it only grows
    data_dir: str = ""  # folder of what survives a restart, stored responses; "": nothing does
    database_url: str = ""  # of stored objects; may hold a password; "": they are in the data folder
    upstream_api_keys: dict[str, str] = {}  # as `upstream_places` names them
    upstream_proxies: dict[str, str] = {}  # by the same names; URLs, which may hold a password
    redis_url: str = ""  # of the cache; may hold a password
    policy_folder: str = ""  # or file, of the policies; absolute
    # Filled by the supervisor:
    socket_paths: dict[str, str] = {}  # by model name: Unix socket of its engine or encoder process
    last_good_keys: str = ""  # what the keys file held when it was last good, for a worker that starts
    counter_fds: tuple[int, ...] = ()  # the counter files of all workers when there are several
    names_fd: int | None = None  # of the metrics' tenants and routes, likewise
    fleet_fd: int | None = None  # of the board of upstreams that fail, when there are several workers
    peer_paths: tuple[str, ...] = ()  # by worker: Unix socket on which others ask it, when there are several
    peer_fds: tuple[int, ...] = ()  # by worker: the listener of that socket, which it inherits

    @property
    def secrets(self) -> set[str]:
        """What no log or message may show: keys, and the passwords of URLs."""
        urls = (self.database_url, self.redis_url, self.replica_redis_url, *self.upstream_proxies.values())
        passwords = (urlsplit(url).password or "" for url in urls)
        keys = (*self.api_keys, *self.upstream_api_keys.values(), *self.telemetry.otlp_headers.values())
        return {secret for secret in (*keys, *passwords) if secret}

    def __repr__(self) -> str:
        """Without the secrets."""
        return f"Settings(host={self.host!r}, port={self.port!r}, api_keys=<{len(self.api_keys)}>)"


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("must be 1 or more")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("must be 0 or more")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError("must be 0 to 65535")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= 86400:
        raise ValueError("must be more than 0 and at most 86400 seconds")
    return number


def _delay(text: str) -> float:
    return 0.0 if float(text) == 0 else _seconds(text)


def _flag(text: str) -> bool:
    if text.lower() not in {"0", "1", "true", "false"}:
        raise ValueError("must be 0 or 1")
    return text.lower() in {"1", "true"}


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise ValueError("must be keys of visible ASCII characters, separated by commas")
    return keys


def _database_url(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://")
    if find_spec("psycopg") is None:
        raise ValueError("needs psycopg: pip install 'penstock[postgres]'")
    return text


def _log_format(text: str) -> str:
    if text not in LOG_FORMATS:
        raise ValueError(f"must be {' or '.join(LOG_FORMATS)}")
    return text


VARIABLES: dict[str, tuple[str, Callable[[str], object]]] = {
    "PENSTOCK_HOST": ("host", str),
    "PENSTOCK_PORT": ("port", _port),
    "PENSTOCK_WORKERS": ("workers", _positive_int),
    "PENSTOCK_API_KEYS": ("api_keys", _keys),
    "PENSTOCK_KEYS_FILE": ("keys_file", str),
    "PENSTOCK_MAX_BODY_BYTES": ("max_body_bytes", _positive_int),
    "PENSTOCK_MAX_HEAD_BYTES": ("max_head_bytes", _positive_int),
    "PENSTOCK_MAX_HEADERS": ("max_headers", _positive_int),
    "PENSTOCK_HEAD_TIMEOUT_S": ("head_timeout_s", _seconds),
    "PENSTOCK_BODY_TIMEOUT_S": ("body_timeout_s", _seconds),
    "PENSTOCK_ENGINE_START_TIMEOUT_S": ("engine_start_s", _seconds),
    "PENSTOCK_FIRST_TOKEN_TIMEOUT_S": ("first_token_s", _seconds),
    "PENSTOCK_IDLE_TIMEOUT_S": ("idle_s", _seconds),
    "PENSTOCK_TOTAL_TIMEOUT_S": ("total_s", _seconds),
    "PENSTOCK_DRAIN_DELAY_S": ("drain_delay_s", _delay),
    "PENSTOCK_DRAIN_TIMEOUT_S": ("drain_timeout_s", _seconds),
    "PENSTOCK_ACCESS_LOG": ("access_log", _flag),
    "PENSTOCK_LOG_FORMAT": ("log_format", _log_format),
    "PENSTOCK_DATA_DIR": ("data_dir", str),
    "PENSTOCK_DATABASE_URL": ("database_url", _database_url),
    "PENSTOCK_DECISION_LOG": ("decision_log", str),
    "PENSTOCK_DECISION_LOG_MAX_BYTES": ("decision_log_max_bytes", _count),
}
"""The field of Settings or its parts, and what reads the text."""
_PREFIX = "PENSTOCK_"
OTHER_VARIABLES = {"PENSTOCK_POLICIES", "PENSTOCK_REDIS_URL", "PENSTOCK_URL"}
_SECRET_VARIABLES = {"PENSTOCK_API_KEYS", "PENSTOCK_DATABASE_URL"}


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """The settings: a flag that is not None wins over its variable, and that over the default.

    `flags` are field names of Settings. Raises SettingsError.
    """
    environment = os.environ if environment is None else environment
    _refuse_unknown(environment)
    values: dict[str, Any] = {}
    for variable, (field, convert) in VARIABLES.items():
        text = environment.get(variable, "")
        if text and not _is_service_link(variable, text):
            values[field] = _convert(variable, text, convert)
    values.setdefault("data_dir", _state_folder(environment))
    values.update({name: value for name, value in flags.items() if value is not None})
    timeouts, http = (
        {name: values.pop(name) for name in part.__struct_fields__ if name in values}
        for part in (Timeouts, HttpLimits)
    )
    return Settings(
        **values,
        timeouts=Timeouts(**timeouts),
        http=HttpLimits(**http),
        telemetry=_telemetry(environment),
    )


def _state_folder(environment: Mapping[str, str]) -> str:
    """`penstock` in the user's state folder (XDG); "" for a user who has none and cannot make one."""
    home = environment.get("HOME", "")
    state = environment.get("XDG_STATE_HOME", "") or (f"{home}/.local/state" if home else "")
    if not Path(state).is_absolute():
        return ""
    folder = Path(state, "penstock")
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    return str(folder) if os.access(nearest, os.W_OK | os.X_OK) else ""


def _convert(variable: str, text: str, convert: Callable[[str], object]) -> object:
    try:
        return convert(text)
    except ValueError as error:
        shown = "" if variable in _SECRET_VARIABLES else f" is {text!r}, but it"
        raise SettingsError(f"{variable}{shown} {error}") from None


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = {*VARIABLES, *OTHER_VARIABLES}
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in known and not _is_service_link(name, environment[name]):
            raise SettingsError(f"unknown variable {name}{_nearest(name, known)}")


def _is_service_link(name: str, value: str) -> bool:
    """True for a variable that Kubernetes sets for a service named `penstock` or `penstock-…`."""
    if name.endswith("_PORT"):
        return value.startswith(("tcp://", "udp://")) or name.endswith("_SERVICE_PORT")
    return re.search(r"_SERVICE_HOST$|_SERVICE_PORT_|_PORT_[0-9]+_(TCP|UDP)(_|$)", name) is not None


def _nearest(name: str, known: Iterable[str]) -> str:
    short = [variable.removeprefix(_PREFIX) for variable in sorted(known)]
    close = difflib.get_close_matches(name.removeprefix(_PREFIX), short, n=1)
    return f"; did you mean {_PREFIX}{close[0]}?" if close else f"; known: {', '.join(sorted(known))}"


def _telemetry(environment: Mapping[str, str]) -> TelemetrySettings:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return TelemetrySettings()
    endpoint = (
        environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").rstrip("/").removesuffix("/v1/traces")
    )
    values: dict[str, Any] = {
        "otlp_endpoint": endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        "otlp_protocol": environment.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf",
        "otlp_headers": _otlp_headers(environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
        "service_name": environment.get("OTEL_SERVICE_NAME") or "penstock",
        "sampler": environment.get("OTEL_TRACES_SAMPLER") or "parentbased_traceidratio",
    }
    if values["otlp_endpoint"] and not values["otlp_endpoint"].startswith(("http://", "https://")):
        raise SettingsError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT is {endpoint or values['otlp_endpoint']!r}; "
            "write it as http://HOST:PORT or https://HOST:PORT"
        )
    if ratio := environment.get("OTEL_TRACES_SAMPLER_ARG", ""):
        values["sample_ratio"] = _convert("OTEL_TRACES_SAMPLER_ARG", ratio, _ratio)
    return TelemetrySettings(**values)


def _ratio(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError("must be 0 to 1")
    return number


def _otlp_headers(text: str) -> dict[str, str]:
    headers = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError("OTEL_EXPORTER_OTLP_HEADERS must be NAME=VALUE pairs separated by commas")
        headers[name.strip().lower()] = value.strip()
    return headers


def upstream_places(policies: Policies) -> Iterator[tuple[str, UpstreamModel]]:
    """Each place that answers for an upstream model: by its name, or as `NAME.targets[0]`."""
    for name, entry in policies.models.items():
        if entry.upstream is not None:
            yield from ((f"{name}{place}", each) for place, each in entry.upstream.places().items())


def upstream_api_keys(policies: Policies, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The API keys of upstreams by place, of hooks by `guardrails.PROFILE.HOOK`, tokens of engines by model.

    Raises SettingsError when a variable that one names is not set.
    """
    environment = os.environ if environment is None else environment
    variables = {name: place.api_key_env for name, place in upstream_places(policies)}
    variables |= token_variables(policies)
    for name, profile in policies.guardrails.profiles.items():
        variables |= {f"guardrails.{name}.{hook}": rules.api_key_env for hook, rules in profile.hooks.items()}
    keys = {}
    for name, variable in variables.items():
        if variable is None:
            continue
        key = environment.get(variable, "").strip()
        if not key:
            what = "hook" if name.startswith("guardrails.") else "model"
            raise SettingsError(
                f"{what} {name!r} takes its API key from the variable {variable}, which is not set: "
                f"export {variable}=… first"
            )
        if not key.isascii() or not key.isprintable():
            raise SettingsError(f"the API key in {variable} has characters that an HTTP header cannot carry")
        keys[name] = key
    return keys


def token_variables(policies: Policies) -> dict[str, str | None]:
    """The variables with the tokens of engines elsewhere, by model."""
    engines = {name: entry.engine for name, entry in policies.models.items() if entry.engine is not None}
    return {name: each.connection.token_env for name, each in engines.items() if each.connection is not None}


def with_policies(chosen: Settings, policies: Policies) -> Settings:
    """The settings with what follows from the policies and the environment. Raises SettingsError."""
    return msgspec.structs.replace(
        chosen,
        upstream_api_keys=upstream_api_keys(policies),
        redis_url=redis_url(policies),
        replica_redis_url=replica_redis_url(policies),
        replicas=policies.replicas,
        key_tenants={key: name for name, tenant in policies.tenants.items() for key in tenant.keys},
        upstream_proxies=upstream_proxies(policies),
    )


def redis_url(policies: Policies, environment: Mapping[str, str] | None = None) -> str:
    """The URL of the cache's Redis; "" where there is none. Raises SettingsError, which never quotes it."""
    rules = policies.cache.redis
    return "" if rules is None else _redis_url("cache.redis", rules.url_env, environment)


def replica_redis_url(policies: Policies, environment: Mapping[str, str] | None = None) -> str:
    """The URL of the replicas' Redis, likewise."""
    variable = policies.replicas.redis_url_env
    return "" if variable is None else _redis_url("replicas.redis_url_env", variable, environment)


def _redis_url(where: str, variable: str, environment: Mapping[str, str] | None) -> str:
    url = (os.environ if environment is None else environment).get(variable, "").strip()
    if not url.startswith(("redis://", "rediss://", "unix://")):
        what = "does not begin with redis://, rediss:// or unix://" if url else "is not set"
        raise SettingsError(
            f"{where} takes its URL from the variable {variable}, which {what}: "
            f"export {variable}=redis://HOST:6379/0 first"
        )
    return url


def upstream_proxies(policies: Policies, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The proxy of each place of an upstream that has one: its policy's, else the environment's.

    HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY are read in lower case first; as in Go, they never apply
    to loopback addresses. Raises SettingsError for a proxy that is not an HTTP(S) URL.
    """
    environment = os.environ if environment is None else environment
    proxies = {}
    for name, upstream in upstream_places(policies):
        if upstream.unix_socket:
            continue
        if proxy := upstream.proxy or environment_proxy(upstream.base_url, environment):
            proxies[name] = proxy
    return proxies


def environment_proxy(url: str, environment: Mapping[str, str] | None = None) -> str:
    """The environment's proxy for a URL, "" without one; see `upstream_proxies`. Raises SettingsError."""
    environment = os.environ if environment is None else environment
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if is_loopback(host) or is_unproxied(host, port, _variable("no_proxy", environment)[1]):
        return ""
    found = (_variable(name, environment) for name in (f"{parts.scheme}_proxy", "all_proxy"))
    variable, proxy = next((each for each in found if each[1]), ("", ""))
    if proxy and not proxy.startswith(("http://", "https://")):
        raise SettingsError(f"{variable} must begin with http:// or https:// to be used for {host!r}")
    if proxy and (fault := url_fault(proxy)):
        raise SettingsError(f"{variable}, which is to be used for {host!r}, {fault}")
    return proxy


def _variable(name: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """The name and value of a variable that may be in lower or upper case; ("", "") when it is not set."""
    return next(
        ((each, environment[each]) for each in (name, name.upper()) if environment.get(each)), ("", "")
    )


def default_policies() -> Path:
    """The policy folder when no flag names one: $PENSTOCK_POLICIES, else the built-in one."""
    given = os.environ.get("PENSTOCK_POLICIES", "")
    return Path(given) if given else DEFAULT_POLICIES


def default_url() -> str:
    """The gateway's URL when no flag gives one: $PENSTOCK_URL, else the local default."""
    return os.environ.get("PENSTOCK_URL") or "http://127.0.0.1:8080"


def decision_log() -> Path:
    """The file when no flag names one. Raises SettingsError where $PENSTOCK_DECISION_LOG is not set."""
    given = os.environ.get("PENSTOCK_DECISION_LOG", "")
    if not given:
        raise SettingsError("name the recorded decisions with --log FILE, or set PENSTOCK_DECISION_LOG")
    return Path(given)


def keys_file() -> str:
    """$PENSTOCK_KEYS_FILE, "" where it is not set."""
    return os.environ.get("PENSTOCK_KEYS_FILE", "")


def environment_secrets() -> set[str]:
    """The values of variables that are named like secrets."""
    named = re.compile(r"(?i)(?:key|token|secret|password)$")
    found = {value for name, value in os.environ.items() if named.search(name) and len(value) >= 8}
    return found | {key.strip() for key in os.environ.get("PENSTOCK_API_KEYS", "").split(",")}


def client_keys() -> tuple[str, ...]:
    """$PENSTOCK_API_KEYS. Raises SettingsError for keys that cannot be sent."""
    try:
        return _keys(os.environ.get("PENSTOCK_API_KEYS", ""))
    except ValueError as error:
        raise SettingsError(f"PENSTOCK_API_KEYS {error}") from None


def client_key(given: str | None) -> str:
    """The API key for the gateway: the flag's, else the first of $PENSTOCK_API_KEYS, else "".

    Raises SettingsError for one that cannot be sent.
    """
    if given is None:
        return next(iter(client_keys()), "")
    if not given or not given.isascii() or not given.isprintable():
        raise SettingsError("--api-key is empty or holds characters that an HTTP header cannot carry")
    return given


def api_key_of(variable: str) -> str:
    """The API key in an environment variable. Raises SettingsError when it cannot be sent."""
    key = os.environ.get(variable, "").strip()
    if not key:  # not quoted: it may be a key in the wrong place
        raise SettingsError(
            "--api-key-env names a variable that is not set; give the variable's name, never the key itself, "
            "and export the key in it first"
        )
    if not key.isascii() or not key.isprintable():
        raise SettingsError(f"the API key in {variable} holds characters that an HTTP header cannot carry")
    return key


def subprocess_environment(policies: Policies) -> dict[str, str]:
    """The environment of our subprocesses: without secrets, and with this code on PYTHONPATH."""
    secrets = {place.api_key_env for _, place in upstream_places(policies)}
    secrets |= {h.api_key_env for p in policies.guardrails.profiles.values() for h in p.hooks.values()}
    secrets |= {*token_variables(policies).values()}
    secrets |= {policies.cache.redis.url_env} if policies.cache.redis is not None else set()
    secrets.add(policies.replicas.redis_url_env)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in secrets and not name.startswith(_PREFIX)
    }
    root = Path(__file__).parents[1]
    if root.name not in {"site-packages", "dist-packages"}:
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), kept.get("PYTHONPATH", "")]))
    return kept
