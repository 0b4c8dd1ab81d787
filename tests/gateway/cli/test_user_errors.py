"""Wrong input to the commands that read files: one line on stderr, never a traceback."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.main import main

CHAT = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}
WRONG_TYPES = {
    "a": 1,
    "b": 2,
    "same": "x",
    "prompt": 3,
    "scores": 4,
    "url": 9,
    "text": 7,
    "label": "q",
    "kind": 8,
}
FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "cut.gz": gzip.compress(b'{"a": 1}\n' * 1000)[:40],
    "list": b"[1, 2]\n",
    "half": b'{"prompt": "x", "sco',
    "deep": b"[" * 100_000 + b"\n",
    "types": json.dumps(WRONG_TYPES).encode(),
    "chat": json.dumps(CHAT).encode(),
    "pair": b'{"a": "x", "b": "y", "same": true}\n',
    "outcomes": b"".join(b'{"prompt": "x%d", "scores": {"a": 1, "b": 0}}\n' % n for n in range(60)),
    "infinite": b'{"prompt": "x", "scores": {"a": 1e999, "b": 0}}\n',
    "label": b'{"text": "x", "label": "yes", "kind": "injection"}\n',
    "kind": b'{"text": "x", "label": 1, "kind": {}}\n',
    "null": b'{"text": null, "label": 1, "kind": "injection"}\n',
    "segment": b'{"text": "x", "label": 1, "kind": "injection", "segment": "page"}\n',
    "supported": b'{"context": "x", "claim": "y", "supported": "maybe"}\n',
    "spans": b'{"text": "x", "spans": [{"start": 1}]}\n',
    "columns": b'{"question": "x"}\n',
}
READ = "none | folder | empty | binary | types | deep"
VECTORS = {
    "batch * -o out": f"{READ} | list | chat --policies none",
    "batch chat -o *": "folder | chat",
    "router train --out w.safetensors --data *": f"{READ} | half | infinite | cut.gz",
    "router train --out w.safetensors *": "--log none | --log binary | --form domains | --threads 2",
    "router train --out w.safetensors --data outcomes *": "--pair x | --weak a | --form blend --threads -3",
    "router train --data outcomes --out *": "w.bin | none/w.safetensors",
    "eval cache --pairs *": f"{READ} | cut.gz",
    "eval cache --pairs pair *": "--json none/x | --json folder | --weights none | --weights binary",
    "eval cache --pairs  pair *": "--max-false-share -1 | --threads 0 | --plot x.svg",
    "eval router --data *": READ,
    "eval router --data outcomes *": "--estimate none | --estimate binary | --splits -2 | --labels -2",
    "eval router --data outcomes --form words *": "--pair x=a,b | --json folder | --threads 0",
    "eval router --plot * --data outcomes": "x.txt | none/x.svg | folder",
    "eval guardrails --data *": f"{READ} | columns | label | kind | null | segment | supported | spans",
    "eval guardrails --data label *": "--max-per-source -1 | --evasions -1 | --false-positive-rate nan",
    "eval guardrails --data segment *": "--json none/x | --json folder | --threads 0",
    "eval models *": "--data none | --json none/x | --timeout nan | --limit 0",
    "policy *": "versions --url http://127.0.0.1:9 | show none",
    "keys *": "id --stdin",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.mark.parametrize(
    "vector",
    [command.replace("*", each) for command, words in VECTORS.items() for each in words.split(" | ")],
)
def test_one_clear_line(vector: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(vector.split()) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1) and error.startswith("penstock: ") and len(error) < 600


@pytest.mark.parametrize("command", ["eval models --limit 1", "eval route"])
def test_a_server_that_is_not_there_is_a_failure_of_the_run(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("penstock: nothing answers at http://127.0.0.1:9/v1")


def test_a_closed_stdout_costs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does once it has its lines
    words = "eval router --data outcomes --form words --splits 1 --json out.json --plot out.svg"
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        with pytest.raises(SystemExit):  # Rich's answer to a closed pipe
            main(words.split())
    assert json.loads((tmp_path / "out.json").read_text())["results"]
    assert "<svg" in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize("wrong", ["--workers 0", "--policies none", "--port 99999"])
def test_a_server_that_logs_json_does_so_from_the_first_line(wrong: str) -> None:
    """Also where it cannot start: a collector reads that line too."""
    found = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", *wrong.split()],
        env=os.environ | {"PENSTOCK_LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stdout) == (2, "")
    (line,) = map(json.loads, found.stderr.splitlines())
    assert line["level"] == "ERROR" and wrong.split()[1] in line["message"]
