"""The Helm chart: rendered for every example and validated; no cluster runs it here."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import trustme
import yaml

from gateway.cli.main import main, parse
from gateway.settings import OTHER_VARIABLES, VARIABLES
from tests.deploy.custom_resources import FIELDS
from tests.deploy.test_compose import DEPLOY, ROOT, asked, instructions, published

WHY = "the extra `kubernetes` is not installed: pip install 'penstock[kubernetes]'"
helm = pytest.importorskip("helm_python", reason=WHY)
kubernetes = pytest.importorskip("kubernetes_validate", reason=WHY)

CHART = DEPLOY / "kubernetes" / "penstock"
EXAMPLES = sorted(path.stem for path in (CHART / "examples").glob("*.yaml"))
VERSION = "1.37"
VARIABLES_OF_TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
Document = dict[str, Any]


def values(example: str) -> Document:
    found: Document = yaml.safe_load((CHART / "examples" / f"{example}.yaml").read_text())
    return found


def render(given: Document) -> list[Document]:
    files = helm.Chart.load(str(CHART)).render(given, name="penstock", namespace="ai")
    return [each for text in files.values() for each in yaml.safe_load_all(text) if each]


@cache
def rendered(example: str) -> tuple[Document, ...]:
    return tuple(render(values(example)))


def every() -> Iterator[Document]:
    for example in EXAMPLES:
        yield from rendered(example)


def pod_templates(document: Document) -> list[Document]:
    spec = document.get("spec", {})
    group = spec.get("leaderWorkerTemplate", {})
    found = (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate"))
    return [template for template in found if template]


def containers() -> Iterator[tuple[Document, Document]]:
    for document in every():
        for template in pod_templates(document):
            for container in template["spec"]["containers"]:
                yield template["spec"], container


def validate(document: Document) -> None:
    """Raises jsonschema's ValidationError for a field that is not known, a wrong type or a missing one."""
    own = FIELDS.get((document["apiVersion"], document["kind"]))
    if own is None:
        kubernetes.validate(document, VERSION, strict=True)
        return
    jsonschema.validate(document, own)
    for template in pod_templates(document):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}
        kubernetes.validate(pod, VERSION, strict=True)


def test_the_examples_are_those_that_the_documentation_names() -> None:
    assert EXAMPLES == ["existing-gateway", "gpu", "minimal", "multi-node"]
    readme = (DEPLOY / "README.md").read_text()
    assert all(f"examples/{name}.yaml" in readme for name in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_kubernetes_knows_every_field(example: str) -> None:
    for document in rendered(example):
        validate(document)


@pytest.mark.parametrize("example", EXAMPLES)
def test_penstock_checks_the_policies_inside(
    example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoints and certificates of the examples are not here: others are read in their place."""
    authority = tmp_path / "ca.crt"
    trustme.CA().cert_pem.write_to_path(authority)
    (inside,) = (each["data"] for each in rendered(example) if each["kind"] == "ConfigMap")
    for name, text in inside.items():
        here = re.sub(r"/models/[\w.-]+", "builtin:pico-small", text)
        (tmp_path / name).write_text(here.replace("/etc/penstock/engine-ca/ca.crt", str(authority)))
    assert main(["check", str(tmp_path)]) == 0, capsys.readouterr()


def test_each_kind_is_in_an_example() -> None:
    assert {each["kind"] for each in every()} == {
        "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "InferencePool", "LeaderWorkerSet",
        "NetworkPolicy", "PodDisruptionBudget", "ScaledObject", "Service", "ServiceMonitor", "StatefulSet",
    }  # fmt: skip


def misspelt(document: Document, path: tuple[str | int, ...]) -> Document:
    changed = copy.deepcopy(document)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    at[f"{path[-1]}s"] = at.pop(path[-1])
    return changed


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", ("spec", "replicas")),
        ("StatefulSet", ("spec", "serviceName")),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "size")),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "volumes")),
        ("ScaledObject", ("spec", "triggers", 0, "metadata", "query")),
        ("InferencePool", ("spec", "endpointPickerRef", "port")),
        ("ServiceMonitor", ("spec", "endpoints")),
        ("NetworkPolicy", ("spec", "ingress")),
    ],
)
def test_a_misspelt_field_of_a_manifest_is_refused(kind: str, path: tuple[str | int, ...]) -> None:
    found = (each for each in every() if each["kind"] == kind)
    document = next(each for each in found if path[1] in each["spec"])
    validate(document)
    with pytest.raises(jsonschema.ValidationError):
        validate(misspelt(document, path))


def keys_of(node: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield (*path, key)
            yield from keys_of(value, (*path, key))


FREE = {"files", "requests", "limits", "labels", "engines"}
"""Their keys are the user's; a file's name and an engine's have a pattern."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_misspelt_value_is_refused(example: str) -> None:
    given = values(example)
    paths = [path for path in keys_of(given) if len(path) < 2 or path[-2] not in FREE]
    assert len(paths) >= 4
    for path in paths:
        with pytest.raises(helm.HelmValuesError) as refused:
            render(misspelt(given, path))
        assert path[-1] in str(refused.value), path


@pytest.mark.parametrize(
    ("example", "change", "words"),
    [
        ("minimal", {"gateway": {"replica": 2}}, "'replica'"),
        ("minimal", {"gateway": {"replicas": "two"}}, "/gateway/replicas"),
        ("minimal", {"gateway": {"replicas": 0}}, "/gateway/replicas"),
        ("minimal", {"auth": None}, "auth"),
        ("minimal", {"auth": {"keysSecret": ""}}, "/auth/keysSecret"),
        ("minimal", {"redisUrlSecret": {"name": "redis"}}, "/redisUrlSecret"),
        ("minimal", {"gateway": {"autoscaling": {"minReplicas": 2}}}, "maxReplicas"),
        ("minimal", {"gateway": {"accelerator": {"resource": "nvidia.com/gpus", "count": 1}}}, "resource"),
        ("minimal", {"policies": {"files": {"policies.txt": ""}}}, "policies.txt"),
        ("minimal", {"inferencePool": {"enabled": True}}, "endpointPicker.name"),
        ("gpu", {"engineAccess": {"certificateSecret": None}}, "engineAccess.certificateSecret"),
        ("gpu", {"engineAccess": {"tokenSecret": None}}, "engineAccess.tokenSecret"),
        ("gpu", {"monitoring": {"prometheusUrl": ""}}, "monitoring.prometheusUrl"),
        ("gpu", {"engines": {"Q06": {"model": "m"}}}, "Q06"),
        ("gpu", {"engines": {"q06": {"model": "qwen"}}}, 'models.qwen.engine.dns: "penstock-q06:7600"'),
        ("multi-node", {"engines": {"q32": {"ranks": 4}}}, "parallel has 2"),
        ("gpu", {"policies": {"files": {"policies.yaml": "models: {"}}}, "policies.files.policies.yaml"),
        ("gpu", {"policies": {"files": {"policies.yaml": None}}}, "policies.files"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(example: str, change: Document, words: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        render(merged(values(example), change))
    assert words in str(refused.value)


def merged(old: Document, new: Document) -> Document:
    """Values of two files, merged like Helm does: null removes a key."""
    found = {key: value for key, value in old.items() if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict):
            found[key] = merged(before if isinstance(before, dict) else {}, value)
        elif value is not None:
            found[key] = value
    return found


def test_what_selects_pods_finds_some() -> None:
    for example in EXAMPLES:
        labels = [t["metadata"]["labels"] for each in rendered(example) for t in pod_templates(each)]
        for document in rendered(example):
            for selector in selectors(document):
                selector.pop("leaderworkerset.sigs.k8s.io/worker-index", None)  # its controller sets it
                assert any(selector.items() <= found.items() for found in labels), document["kind"]


def selectors(document: Document) -> Iterator[dict[str, str]]:
    if document["kind"] == "Service":
        yield dict(document["spec"]["selector"])
    elif document["kind"] != "ServiceMonitor":  # it selects services
        yield from match_labels(document)


def match_labels(node: object) -> Iterator[dict[str, str]]:
    if isinstance(node, dict):
        if "matchLabels" in node:
            yield dict(node["matchLabels"])
        for value in node.values():
            yield from match_labels(value)
    elif isinstance(node, list):
        for value in node:
            yield from match_labels(value)


def test_a_service_monitor_finds_the_gateways_service_and_port() -> None:
    documents = rendered("gpu")
    (monitor,) = (each for each in documents if each["kind"] == "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    services = [each for each in documents if each["kind"] == "Service"]
    (service,) = (each for each in services if wanted.items() <= each["metadata"]["labels"].items())
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_pods_fit_the_image() -> None:
    """User, command, and volumes where the image writes, as the root file system is read-only."""
    found = instructions("Dockerfile")
    (user,) = re.findall(r"--uid (\d+)", " ".join(rest for _, rest in found))
    words = dict(found)
    written = {"/tmp", words["WORKDIR"], words["VOLUME"]}
    for pod, container in containers():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == security["fsGroup"] == int(user)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not pod["automountServiceAccountToken"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert set(mounts.values()) == set(volumes)
        assert {path for path, name in mounts.items() if "emptyDir" in volumes[name]} == written
        if "args" in container:
            assert parse(container["args"]).run


def test_gateways_get_variables_that_they_read_and_time_to_drain() -> None:
    for pod, container in containers():
        variables = {each["name"]: each.get("value") for each in container["env"]}
        ours = {name for name in variables if name.startswith("PENSTOCK_")}
        assert ours <= set(VARIABLES) | OTHER_VARIABLES
        if container["name"] == "gateway":
            drain_s = sum(float(variables[f"PENSTOCK_DRAIN_{name}_S"]) for name in ("DELAY", "TIMEOUT"))
            assert pod["terminationGracePeriodSeconds"] > drain_s
            assert variables["PENSTOCK_KEYS_FILE"].startswith("/etc/penstock/keys/")


def test_probes_ask_the_health_paths() -> None:
    text = (ROOT / "gateway" / "admin" / "health.py").read_text()
    (live,), (ready,) = (
        re.findall(rf"^{name}_PATHS = (\(.+\))$", text, re.MULTILINE) for name in ("LIVE", "READY")
    )
    for container in (container for _, container in containers() if container["name"] == "gateway"):
        assert container["livenessProbe"]["httpGet"]["path"] in ast.literal_eval(live)
        for probe in ("startupProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["path"] in ast.literal_eval(ready), "they wait for the models"


def test_keda_asks_for_a_metric_that_exists() -> None:
    queries = [
        t["metadata"]["query"] for d in every() if d["kind"] == "ScaledObject" for t in d["spec"]["triggers"]
    ]
    assert set() < asked(" ".join(queries)) <= published()


def test_only_the_first_rank_of_a_group_answers() -> None:
    (group,) = (each for each in rendered("multi-node") if each["kind"] == "LeaderWorkerSet")
    leader, worker = (
        group["spec"]["leaderWorkerTemplate"][name]["spec"]["containers"][0]
        for name in ("leaderTemplate", "workerTemplate")
    )
    assert "readinessProbe" in leader and "readinessProbe" not in worker
    services = [each for each in rendered("multi-node") if each["kind"] == "Service"]
    (engines,) = (each for each in services if each["spec"].get("clusterIP") == "None")
    assert engines["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    # Its controller makes a service of the set's own name, which has all ranks, ready or not.
    assert group["metadata"]["name"] not in {each["metadata"]["name"] for each in services}
    for container in (leader, worker):
        assert VARIABLES_OF_TORCHRUN <= {each["name"] for each in container["env"]}
    assert worker["command"] == ["python", "-m", "backend.parallel.worker"] and "args" not in worker
    assert (ROOT / "backend" / "parallel" / "worker.py").exists()


def test_no_secret_is_in_the_chart() -> None:
    assert "Secret" not in {each["kind"] for each in every()}


def checksum(policies: str) -> str:
    found = render(merged(values("gpu"), {"policies": {"files": {"policies.yaml": policies}}}))
    (engine,) = (each for each in found if each["kind"] == "StatefulSet")
    annotations: dict[str, str] = engine["spec"]["template"]["metadata"]["annotations"]
    return annotations["checksum/engine-section"]


def test_engines_restart_for_their_own_section_alone() -> None:
    text = values("gpu")["policies"]["files"]["policies.yaml"]
    assert checksum(text) == checksum(text + "routes: {fast: {model: qwen3-0.6b}}\n")
    assert checksum(text) != checksum(text.replace("dns:", "max_running: 8\n      dns:"))
