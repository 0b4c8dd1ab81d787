"""deploy/ fits the code: ports, environment names, files and metric names exist where it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.server.engine_messages import EngineStats
from deploy.grafana import dashboards
from gateway.telemetry.metrics import Metrics
from tests.gateway.telemetry.test_engine_metrics import Source
from tests.gateway.telemetry.test_metrics import serve

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    return found


def instructions(name: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions as (word, rest), continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / name).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_environment_names_are_read_by_the_settings() -> None:
    settings = (ROOT / "gateway" / "settings.py").read_text()
    names = load("compose.yaml")["services"]["gateway"]["environment"]
    assert {name for name in names if f'"{name}"' not in settings} == {"REDIS_URL"}, "the policies name it"


def test_services_reach_each_other_by_names_that_exist() -> None:
    services = load("compose.yaml")["services"]
    ports = {
        "gateway": {8080},
        "jaeger": {16686, 4317},
        "collector": {4317, 4318},
        "redis": {6379},
        "prometheus": {9090},
        "grafana": {3000},
    }
    assert set(services) == set(ports)
    scraped = load("prometheus/prometheus.yml")["scrape_configs"]
    targets = [target for config in scraped for target in config["static_configs"]]
    addresses = [address for target in targets for address in target["targets"]]
    urls = [source["url"] for source in load("grafana/provisioning/datasources/penstock.yaml")["datasources"]]
    environment = services["gateway"]["environment"]
    urls += [environment["OTEL_EXPORTER_OTLP_ENDPOINT"], environment["REDIS_URL"]]
    urls.append(load("collector.yaml")["exporters"]["otlp_grpc"]["endpoint"])
    addresses += [re.sub(r"^\w+://|/0$", "", url) for url in urls]
    assert len(addresses) == 6
    for address in addresses:
        host, port = address.split(":")
        assert int(port) in ports[host], address


def test_everything_is_published_on_loopback_only_and_pinned() -> None:
    named = load("compose.yaml")["volumes"]
    for name, service in load("compose.yaml")["services"].items():
        for port in service.get("ports", []):
            assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), (name, port)
        if "image" in service:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in named or (source.startswith(".") and (DEPLOY / source).exists()), volume


def test_the_state_outlives_the_container() -> None:
    """A named volume where the image keeps it, in a folder that belongs to the image's user."""
    (mount,) = load("compose.yaml")["services"]["gateway"]["volumes"]
    source, folder = mount.split(":")
    assert source in load("compose.yaml")["volumes"]
    found = instructions("Dockerfile")
    assert ("VOLUME", folder) in found
    assert any(word == "ENV" and f"PENSTOCK_DATA_DIR={folder}" in rest.split() for word, rest in found)
    assert any(
        word == "RUN" and rest.endswith(f"install -d -o penstock -g penstock -m 700 {folder}")
        for word, rest in found
    )


def test_the_image_copies_what_is_there_and_does_not_run_as_root() -> None:
    found = instructions("Dockerfile")
    ignored = (ROOT / ".dockerignore").read_text().split()
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists() and source not in ignored, source
    words = dict(found)
    assert words["USER"] not in ("root", "0")
    assert words["EXPOSE"] == "8080" and "--port" in words["CMD"] and "/health/ready" in words["HEALTHCHECK"]
    assert json.loads(words["ENTRYPOINT"]) == ["penstock"]
    text = (DEPLOY / "Dockerfile").read_text()
    pattern = re.search(r"\$\(grep '(.+)' constraints\.txt\)", text)
    assert pattern is not None and "torch==" not in text.replace(pattern.group(), "")
    pinned = re.findall(f"(?m){pattern[1]}.*$", (ROOT / "constraints.txt").read_text())
    assert len(pinned) == 1 and re.fullmatch(r"torch==[\d.]+", pinned[0])


def test_the_image_with_triton_has_a_compiler() -> None:
    """Triton compiles its driver for CUDA in C; the image that it is copied to has no compiler otherwise."""
    found = instructions("Dockerfile")
    copied = found.index(("COPY", "--from=build /opt/penstock /opt/penstock"))
    after = [rest for word, rest in found[copied:] if word == "RUN"]
    assert any(
        re.search(r"site-packages/triton \].*apt-get install .*\bgcc libc6-dev\b", run) for run in after
    )
    assert found.index(("USER", "penstock")) > found.index(("RUN", after[0]))


def test_the_image_has_every_package_that_is_installed() -> None:
    copied = {rest.split()[0] for word, rest in instructions("Dockerfile") if word == "COPY"}
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "*/__init__.py"], capture_output=True, text=True, check=True
    ).stdout.split()
    packages = {path.split("/")[0] for path in tracked} - {"tests"}
    assert packages <= copied


def test_the_collector_has_what_its_pipelines_name() -> None:
    found = load("collector.yaml")
    for pipeline in found["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) == set(found[kind]), "what no pipeline names does nothing"
    policies = found["processors"]["tail_sampling"]["policies"]
    assert all(each["type"] in each for each in policies)


def published() -> set[str]:
    """Names of the metrics of a gateway with an engine."""
    metrics = Metrics(["pico"])
    metrics.set_engines({"pico": Source(stats=EngineStats())})
    serve(metrics)
    return set(re.findall(r"^# TYPE (\S+)", metrics.render().decode(), re.MULTILINE))


def asked(text: str) -> set[str]:
    """Names of the metrics that expressions ask for."""
    return {name.removesuffix("_bucket") for name in re.findall(r"\bpenstock_\w+", text)}


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_the_dashboard_is_written_and_asks_for_metrics_that_exist(name: str) -> None:
    path = DEPLOY / "grafana" / "dashboards" / f"{name}.json"
    assert path.read_text("utf-8") == dashboards.text(name), "run python deploy/grafana/dashboards.py"
    panels = json.loads(path.read_text("utf-8"))["panels"]
    expressions = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    assert set() < asked(expressions) <= published()


def test_no_other_dashboard_is_there() -> None:
    found = {path.stem for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")}
    assert found == set(dashboards.DASHBOARDS)


def test_alerts_ask_for_metrics_that_exist_and_say_what_to_do() -> None:
    rules = [rule for group in load("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
    for rule in rules:
        assert asked(rule["expr"]) <= published() | {"penstock"}
        assert set(rule["annotations"]) == {"summary", "remedy"}
        assert rule["labels"]["severity"] in ("page", "warn")
    tests = load("prometheus/alerts_test.yml")["tests"]
    tested = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert tested == {rule["alert"] for rule in rules}


@pytest.mark.parametrize(
    "command", ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml"]
)
def test_promtool_accepts_what_prometheus_reads(command: str) -> None:
    promtool = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run(
        [promtool, *command.split()], cwd=DEPLOY / "prometheus", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
