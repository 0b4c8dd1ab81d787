"""Flags, variables, defaults, in this order; unknown or invalid ones are refused, secrets never shown."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gateway import settings
from gateway.settings import (
    HttpLimits,
    Settings,
    SettingsError,
    Timeouts,
    read_settings,
    upstream_api_keys,
    upstream_proxies,
)
from policies.document import ModelEntry, Policies
from policies.guardrails import GuardrailProfile, GuardrailsSection, HookRules
from policies.upstream import UpstreamModel, UpstreamTarget


def test_data_folder_is_in_the_users_state(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert read_settings({}, home).data_dir == f"{tmp_path}/.local/state/penstock"
    assert read_settings({}, {**home, "XDG_STATE_HOME": f"{tmp_path}/x"}).data_dir == f"{tmp_path}/x/penstock"
    assert read_settings({}, {**home, "PENSTOCK_DATA_DIR": "/data"}).data_dir == "/data"
    assert read_settings({}, {}).data_dir == ""


def test_defaults() -> None:
    assert read_settings({}, {}) == Settings()


def test_flag_wins_over_variable_over_default() -> None:
    environment = {"PENSTOCK_PORT": "9000", "PENSTOCK_HOST": "::1", "PENSTOCK_IDLE_TIMEOUT_S": "1.5"}
    found = read_settings({"port": 9100, "host": None}, environment)
    assert (found.port, found.host, found.workers) == (9100, "::1", 1)
    assert found.timeouts == Timeouts(idle_s=1.5)


def test_limits_of_connections() -> None:
    environment = {"PENSTOCK_MAX_HEADERS": "20", "PENSTOCK_HEAD_TIMEOUT_S": "2.5"}
    assert read_settings({}, environment).http == HttpLimits(max_headers=20, head_timeout_s=2.5)


def test_the_guide_to_deployment_has_the_defaults() -> None:
    guide = (Path(__file__).parents[2] / "deploy" / "README.md").read_text()
    rows = dict(re.findall(r"^\| `(PENSTOCK_\w+)` \| (\d+) \|", guide, re.MULTILINE))
    limits = {"PENSTOCK_MAX_BODY_BYTES", "PENSTOCK_MAX_HEAD_BYTES", "PENSTOCK_MAX_HEADERS"}
    assert set(rows) == limits | {
        name for name in settings.VARIABLES if name.endswith(("_TIMEOUT_S", "_DELAY_S"))
    }
    assert read_settings({}, rows) == Settings()


def test_keys_are_a_list() -> None:
    assert read_settings({}, {"PENSTOCK_API_KEYS": "a, b,,"}).api_keys == ("a", "b")
    assert read_settings({"api_keys": ("c",)}, {"PENSTOCK_API_KEYS": "a"}).api_keys == ("c",)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PENSTOCK_PROT": "1"}, "unknown variable PENSTOCK_PROT; did you mean PENSTOCK_PORT?"),
        ({"PENSTOCK_XYZZY": "1"}, "unknown variable PENSTOCK_XYZZY; known: PENSTOCK_ACCESS_LOG"),
        ({"PENSTOCK_PORT": "http"}, "PENSTOCK_PORT is 'http', but it"),
        ({"PENSTOCK_PORT": "70000"}, "PENSTOCK_PORT is '70000', but it must be 0 to 65535"),
        ({"PENSTOCK_WORKERS": "0"}, "must be 1 or more"),
        ({"PENSTOCK_IDLE_TIMEOUT_S": "-1"}, "more than 0"),
        ({"PENSTOCK_ACCESS_LOG": "maybe"}, "must be 0 or 1"),
        ({"PENSTOCK_LOG_FORMAT": "JSON"}, "PENSTOCK_LOG_FORMAT is 'JSON', but it must be text or json"),
        ({"OTEL_TRACES_SAMPLER_ARG": "2"}, "must be 0 to 1"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "jaeger:4317"}, "write it as http://HOST:PORT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://j", "OTEL_EXPORTER_OTLP_HEADERS": "a"}, "NAME=VALUE"),
    ],
)
def test_wrong_variables(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({}, environment)
    assert message in str(caught.value)


def test_service_links_of_kubernetes_are_not_ours() -> None:
    environment = {
        "PENSTOCK_PORT": "tcp://10.0.0.7:80",
        "PENSTOCK_SERVICE_HOST": "10.0.0.7",
        "PENSTOCK_SERVICE_PORT": "80",
        "PENSTOCK_SERVICE_PORT_HTTP": "80",
        "PENSTOCK_PORT_80_TCP": "tcp://10.0.0.7:80",
        "PENSTOCK_PORT_80_TCP_ADDR": "10.0.0.7",
        "PENSTOCK_GATEWAY_PORT": "tcp://10.0.0.8:80",
    }
    assert read_settings({}, environment) == Settings()


def test_secrets_are_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({}, {"PENSTOCK_API_KEYS": "sk canary"})
    assert "canary" not in str(caught.value)
    assert "canary" not in repr(Settings(api_keys=("canary",), upstream_api_keys={"m": "canary"}))


def test_telemetry() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://jaeger:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "X-Key = v ,b=c=d",
        "OTEL_SERVICE_NAME": "mine",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }
    found = read_settings({}, environment).telemetry
    assert (found.otlp_endpoint, found.otlp_protocol) == ("http://jaeger:4317", "grpc")
    assert found.otlp_headers == {"x-key": "v", "b": "c=d"}
    assert (found.service_name, found.sample_ratio) == ("mine", 0.25)
    traces = {**environment, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:4318/v1/traces"}
    assert read_settings({}, traces).telemetry.otlp_endpoint == "http://t:4318"
    assert read_settings({}, {**environment, "OTEL_SDK_DISABLED": "true"}).telemetry.otlp_endpoint == ""


def upstream(variable: str | None) -> Policies:
    model = UpstreamModel(base_url="http://h/v1", api_key_env=variable)
    return Policies(models={"u": ModelEntry(upstream=model)})


def test_upstream_keys() -> None:
    assert upstream_api_keys(upstream("MY_KEY"), {"MY_KEY": " sk-1\n"}) == {"u": "sk-1"}
    assert upstream_api_keys(upstream(None), {}) == {}
    with pytest.raises(SettingsError, match="model 'u' takes its API key from the variable MY_KEY"):
        upstream_api_keys(upstream("MY_KEY"), {})


def test_targets_have_keys_and_proxies_of_their_own() -> None:
    targets = [UpstreamTarget(base_url="http://a/v1", api_key_env="A"), UpstreamTarget(api_key_env="B")]
    model = UpstreamModel(base_url="http://h/v1", targets=targets)
    policies = Policies(models={"u": ModelEntry(upstream=model)})
    keys = upstream_api_keys(policies, {"A": "sk-a", "B": "sk-b"})
    assert keys == {"u.targets[0]": "sk-a", "u.targets[1]": "sk-b"}
    with pytest.raises(SettingsError, match=r"model 'u.targets\[1\]' takes its API key from the variable B"):
        upstream_api_keys(policies, {"A": "sk-a"})
    proxies = settings.upstream_proxies(policies, {"http_proxy": "http://p:1", "no_proxy": "a"})
    assert proxies == {"u.targets[1]": "http://p:1"}


def test_subprocesses_get_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEYS", "canary")
    monkeypatch.setenv("MY_KEY", "canary")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("HOOK_KEY", "canary")
    hook = HookRules(url="http://127.0.0.1:1/check", api_key_env="HOOK_KEY")
    guardrails = GuardrailsSection(profiles={"p": GuardrailProfile(hooks={"own": hook})})
    policies = msgspec.structs.replace(upstream("MY_KEY"), guardrails=guardrails)
    environment = settings.subprocess_environment(policies)
    assert "canary" not in environment.values()
    assert environment["LANG"] == "C.UTF-8"


def test_settings_cross_a_pipe() -> None:
    sent = Settings(api_keys=("k",), timeouts=Timeouts(idle_s=2), socket_paths={"m": "/x"})
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Settings) == sent


def upstreams(**urls: str) -> Policies:
    models = {name: ModelEntry(upstream=UpstreamModel(base_url=url)) for name, url in urls.items()}
    return Policies(models=models)


def test_the_environments_proxy_by_scheme_and_in_lower_case_first() -> None:
    policies = upstreams(plain="http://a.test/v1", tls="https://a.test/v1")
    environment = {
        "HTTPS_PROXY": "http://upper:1",
        "https_proxy": "http://lower:1",
        "HTTP_PROXY": "http://h:1",
    }
    assert upstream_proxies(policies, environment) == {"plain": "http://h:1", "tls": "http://lower:1"}
    assert upstream_proxies(policies, {"ALL_PROXY": "https://u:p@all:1"}) == dict.fromkeys(
        ("plain", "tls"), "https://u:p@all:1"
    )
    assert upstream_proxies(policies, {}) == {}


@pytest.mark.parametrize(
    ("host", "no_proxy", "is_direct"),
    [
        ("api.test", "", False),
        ("api.test", "other.test,api.test", True),
        ("api.test", ".test", True),
        ("api.test", "*.test", True),
        ("api.test", "test", True),
        ("api.test", "pi.test", False),
        ("api.test:444", "api.test:444", True),
        ("api.test:444", "api.test:443", False),
        ("api.test", "api.test:443", True),
        ("api.test", "api.test:80", False),
        ("[fe80::2]:1", "[fe80::2]:1", True),
        ("[fe80::2]:1", "[fe80::2]:2", False),
        ("[fe80::2]", "[fe80::2]", True),
        ("[fe80::2]", "fe80::2", True),
        ("api.test", "*", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("[fd00::1]", "fd00::/8", True),
        ("API.test", "api.TEST", True),
        ("localhost", "", True),
        ("127.0.0.1:8000", "", True),
        ("[::1]", "", True),
    ],
)
def test_hosts_without_the_environments_proxy(host: str, no_proxy: str, is_direct: bool) -> None:
    environment = {"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": no_proxy}
    found = upstream_proxies(upstreams(m=f"https://{host}/v1"), environment)
    assert found == ({} if is_direct else {"m": "http://proxy:1"})


def test_a_policys_proxy_wins_and_a_unix_socket_has_none() -> None:
    own = UpstreamModel(base_url="https://a.test/v1", proxy="http://own:1")
    local = UpstreamModel(base_url="https://a.test/v1", unix_socket="/run/x.sock")
    policies = Policies(models={"own": ModelEntry(upstream=own), "local": ModelEntry(upstream=local)})
    assert upstream_proxies(policies, {"HTTPS_PROXY": "http://e:1", "NO_PROXY": "*"}) == {
        "own": "http://own:1"
    }


def test_a_proxy_of_another_protocol_is_refused_where_it_would_be_used() -> None:
    environment = {"ALL_PROXY": "socks5://u:canary@proxy:1"}
    with pytest.raises(SettingsError, match="ALL_PROXY must begin with http:// or https://") as refused:
        upstream_proxies(upstreams(m="https://a.test/v1"), environment)
    assert "canary" not in str(refused.value)
    assert upstream_proxies(upstreams(m="https://localhost/v1"), environment) == {}


@pytest.mark.parametrize(
    ("proxy", "fault"),
    [
        ("http://", "has no valid host"),
        ("http://u:canary@:1", "has no valid host"),
        ("http://u:canary@p:99999", "has a port that is not a number"),
        ("http://u:canary@p:0", "has a port that is not a number"),
        ("http://u:canary@[::1", "has a malformed IPv6 address"),
    ],
)
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_without_a_usable_address_is_refused_by_the_variables_name(
    proxy: str, fault: str, variable: str
) -> None:
    with pytest.raises(
        SettingsError, match=f"^{variable}, which is to be used for 'a.test', {fault}"
    ) as refused:
        upstream_proxies(upstreams(m="https://a.test/v1"), {variable: proxy})
    assert "canary" not in str(refused.value)
    with pytest.raises(SettingsError, match=f"^{variable} must begin with http://"):
        upstream_proxies(upstreams(m="https://a.test/v1"), {variable: "p:1"})
