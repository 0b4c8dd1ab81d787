"""`penstock explain` answers from the policies alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.cli.main import main
from router.log import Placement, Record, ReplicaQuote

POLICIES = """\
models:
  small: {engine: {checkpoint: "builtin:pico-small"}}
  large: {engine: {checkpoint: "builtin:pico-large"}}
routing: {headers: [x-region]}
tenants: {key-12345678: {tier: gold}}
routes:
  auto:
    rules:
      - {name: eu, when: "headers['x-region'] == 'eu'", model: large}
      - {name: gold, when: tenant.tier == 'gold', model: large}
    model: small
"""
CHAT = '{"messages": [{"role": "user", "content": "hi"}]}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICIES)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["-d", CHAT], ["route    auto", "model    small", "why      route auto, default"]),
        (["-d", CHAT, "-H", "X-Region: eu"], ["model    large", "why      route auto, rule 1 (eu)"]),
        (["-d", CHAT, "--tenant", "key-12345678"], ["why      route auto, rule 2 (gold)"]),
        (["-d", '{"model": "small", "prompt": "hi"}'], ["route    none: the request names a model"]),
    ],
)
def test_explanations(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], lines: list[str]
) -> None:
    assert main(["explain", str(folder), *arguments]) == 0
    found = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line not in found] == []


def test_a_body_from_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "body.json").write_text(CHAT)
    assert main(["explain", str(folder), "-d", f"@{folder}/body.json"]) == 0
    assert "model    small" in capsys.readouterr().out


def test_of_a_recorded_request_only_what_is_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"request.model": "auto", "headers": {"x-region": "eu"}}
    placements = [Placement(chosen=0, reason="least seconds", quotes=[ReplicaQuote(replica=0)])]
    record = Record(
        facts=facts,
        version="v",
        id="one",
        model="large",
        reason="route auto, rule 1 (eu)",
        placements=placements,
    )
    log = folder / "decisions.jsonl"
    log.write_bytes(msgspec.json.encode(record) + b"\n")
    assert main(["explain", str(folder), "--id", "one", "--log", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("recorded under version v") and lines[-2] == "recorded route auto, rule 1 (eu)"
    assert lines[-1].startswith("replica  0: 0.0 ms to the first token, chosen: least seconds")
    assert "model    large" in lines and not [line for line in lines if line.startswith("cache")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "{"], "the request is not valid: The body is not valid JSON"),
        (["-d", '{"messages": []}'], "Invalid value for 'messages'"),
        (["-d", '{"model": "smal", "prompt": "x"}'], "Did you mean 'small'?"),
        (["-d", "@/none"], "cannot read /none: No such file"),
        (["-d", CHAT, "-H", "x"], "must have the form 'NAME: VALUE'"),
    ],
)
def test_errors(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["explain", str(folder), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_policy_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", str(folder)]) == 0
    assert "max_attempts: 3" in capsys.readouterr().out
