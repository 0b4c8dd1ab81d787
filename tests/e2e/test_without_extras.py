"""The base install: packages of extras are hidden from every process; a gateway to upstreams works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from gateway.extras import PACKAGES
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server
from tests.e2e.upstream import Upstream

HIDDEN = sorted(
    {name for names in PACKAGES.values() for name in names if "." not in name} | {"transformers", "triton"}
)
HIDE = f"""
import importlib.machinery
import sys

HIDDEN = {HIDDEN!r}


class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)


sys.meta_path = [Hiding if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
"""
POLICIES = """
cache: {{mode: exact}}
models:
  far: {{upstream: {{base_url: "{url}"}}}}
routes:
  auto:
    rules:
      - {{when: "!request.has_tools", model: far, guardrails: guarded}}
      - {{model: far}}
guardrails:
  profiles:
    guarded:
      patterns: {{codename: {{words: [bluebird]}}, number: {{regex: "ticket [0-9]{{4}}", action: redact}}}}
      expose: true
"""


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that see no package of an extra."""
    folder = tmp_path_factory.mktemp("hiding")
    (folder / "sitecustomize.py").write_text(HIDE)
    path = [str(folder), str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


@pytest.fixture(scope="module")
def far() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer,
    hiding: dict[str, str],
    far: Upstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    folder: Path = tmp_path_factory.mktemp("policies")
    (folder / "policies.yaml").write_text(POLICIES.format(url=far.base_url))
    return start_module_server("--policies", str(folder), environment=hiding)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def run(hiding: dict[str, str], *arguments: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        env={**os.environ, **hiding},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stderr


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_no_process_finds_a_package_of_an_extra(hiding: dict[str, str]) -> None:
    find = f"from importlib.util import find_spec; print([n for n in {HIDDEN!r} if find_spec(n)])"
    env = {**os.environ, **hiding}
    assert subprocess.run([sys.executable, "-c", find], env=env, capture_output=True).stdout == b"[]\n"


def test_a_chat_is_answered_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="auto", messages=asked("whole"))  # type: ignore[arg-type]
    assert whole.choices[0].message.content == "echo: whole"
    chunks = client.chat.completions.create(model="far", messages=asked("flow"), stream=True)  # type: ignore[arg-type]
    assert "flow" in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_the_exact_cache_answers(server: Server, far: Upstream) -> None:
    body = {"model": "far", "messages": asked("again"), "temperature": 0}
    answers = [httpx.post(f"{server.base_url}/chat/completions", json=body) for _ in range(2)]
    assert [each.headers["x-penstock-cache"] for each in answers] == ["miss", "exact"]
    assert sum(seen.body["messages"] == asked("again") for seen in far.seen) == 1


def test_patterns_refuse_and_redact(client: openai.OpenAI, far: Upstream) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="auto", messages=asked("on bluebird"))  # type: ignore[arg-type]
    assert refused.value.code == "content_filter"
    client.chat.completions.create(model="auto", messages=asked("read ticket 1234"))  # type: ignore[arg-type]
    assert far.seen[-1].body["messages"] == asked("read [NUMBER]")


def test_moderation_names_the_extra(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match=r"pip install 'penstock\[semantic\]'") as failed:
        client.moderations.create(input="hello")
    assert failed.value.status_code == 503


def test_what_has_no_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="all-minilm-l6-v2"):
        client.embeddings.create(model="all-minilm-l6-v2", input="hello")


def test_flags_serve_an_upstream_without_the_embedded_models(
    start_server: StartServer, hiding: dict[str, str], far: Upstream
) -> None:
    server = start_server("--upstream", f"gpt={far.base_url}", environment=hiding)
    assert [model["id"] for model in httpx.get(f"{server.base_url}/models").json()["data"]] == ["gpt"]
    assert server.log.count("the embedded models are left out") == 1
    assert "needs torch and onnxruntime: pip install 'penstock[engine,semantic]'" in server.log
    body = {"model": "gpt", "messages": asked("hi")}
    assert httpx.post(f"{server.base_url}/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("command", ["serve --port 0", "batch in.jsonl -o out.jsonl"])
def test_the_embedded_models_are_refused_in_a_line(command: str, hiding: dict[str, str]) -> None:
    code, said = run(hiding, *command.split())
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("penstock: serving the embedded models needs torch and onnxruntime: pip install ")
    assert "--upstream" in said


def test_a_checkpoint_of_a_flag_is_refused(hiding: dict[str, str]) -> None:
    flags = ["--only", "--model", "m=builtin:pico-small", "--upstream", "u=http://h/v1"]
    assert run(hiding, "serve", "--port", "0", *flags) == (
        2,
        "penstock: --model m needs torch: pip install 'penstock[engine]'\n",
    )


@pytest.mark.parametrize("command", ["check", "serve"])
def test_sections_that_need_an_extra_are_refused_with_their_lines(
    command: str, hiding: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(
        "models:\n"
        "  small: {engine: {checkpoint: builtin:pico-small}}\n"
        "  minilm:\n"
        "    encoder: {checkpoint: builtin:all-minilm-l6-v2}\n"
        "  aws: {upstream: {service: bedrock}}\n"
    )
    folder = [str(tmp_path)] if command == "check" else ["--port", "0", "--policies", str(tmp_path)]
    code, said = run(hiding, command, *folder)
    assert code == 2
    assert f"{tmp_path}/p.yaml:2:11: models.small.engine needs torch: pip install 'penstock[engine]'" in said
    assert "p.yaml:4:5: models.minilm.encoder needs onnxruntime: pip install 'penstock[semantic]'" in said
    assert "p.yaml:5:9: models.aws.upstream needs botocore: pip install 'penstock[bedrock]'" in said
    assert said.count("\n") == 3


@pytest.mark.parametrize(
    ("command", "extras"),
    [
        ("eval models", "eval"),
        ("eval route", "eval"),
        ("eval cache", "eval,semantic"),
        ("eval router --data f", "eval,semantic"),
        ("eval guardrails --data f", "eval,semantic"),
        ("guardrails try hello", "semantic"),
        ("cache explain a b", "semantic"),
        ("router train --out w.safetensors", "semantic"),
        ("models pull a/1 folder", "mlflow"),
    ],
)
def test_commands_name_what_they_need(command: str, extras: str, hiding: dict[str, str]) -> None:
    code, said = run(hiding, *command.split())
    assert code == 2 and said.startswith("penstock: this command needs ") and said.count("\n") == 1
    assert said.endswith(f": pip install 'penstock[{extras}]'\n")


def test_a_profile_is_tried_whose_checks_need_no_encoder(hiding: dict[str, str], tmp_path: Path) -> None:
    words = "patterns: {codename: {words: [bluebird]}}, checks: {attacks: {check: known_attacks}}"
    data = f"{{personal_data: {{}}, injection: {{classifier: false}}, {words}}}"
    profiles = f"{{data: {data}, all: {{harm: {{}}}}}}"
    (tmp_path / "p.yaml").write_text(
        "models:\n  minilm: {encoder: {checkpoint: builtin:all-minilm-l6-v2}}\n"
        f"guardrails: {{default: data, profiles: {profiles}}}\n"
    )
    tried = "guardrails", "try", "write to bob@example.com", str(tmp_path)
    assert run(hiding, *tried) == (0, "")
    code, said = run(hiding, *tried, "--profile", "all")
    assert code == 2 and said.startswith("penstock: this command needs onnxruntime: ")
    for wrong in (("--profile", "strict"), ("--profile", "gone", str(tmp_path / "gone"))):
        code, said = run(hiding, *tried[:3], *wrong)
        assert code == 2 and "pip install" not in said, said


def test_explaining_a_policy_with_an_encoder_names_the_extra(hiding: dict[str, str]) -> None:
    request = '{"messages": [{"role": "user", "content": "hi"}]}'
    default = Path(__file__).resolve().parents[2] / "policies" / "default"
    code, said = run(hiding, "explain", str(default), "--data", request)
    assert code == 2 and said.endswith("pip install 'penstock[semantic]'\n") and said.count("\n") == 1
