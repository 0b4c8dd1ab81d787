"""Every code block of README.md and of the folders' guides, run as a reader would run it, in a fresh folder.

Shell and Python blocks run against a server of the default policies. YAML blocks pass `penstock check` with
models for the names that they only mention. JSON must be JSON. NOT_RUN names what cannot run here and the
reason; the flags of its `penstock` commands are compared with `--help`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gateway.checkpoints import checkpoint_folder
from gateway.cli.main import main
from tests.backend.server.certificates import make_certificates
from tests.e2e.conftest import StartServer, write_default_policies
from tests.e2e.server import Server

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md"))]

NOT_RUN = {
    "make serve": "installs; the server that the other blocks ask is started as it does",
    "make test": "these are the tests",
    "make check": "a part of `make test`",
    "make bench": "measures for minutes",
    "docker ": "needs Docker",
    "pip install": "needs the network",
    "openrouter.ai": "needs the network and a key",
    "kubectl ": "needs a cluster",
    "helm ": "needs a cluster",
    "ray start": "needs the extra `ray`",
    "serve run": "needs a Ray cluster",
    "penstock serve": "runs until it is stopped; its flags are compared",
    "penstock engine": "runs until it is stopped; its flags are compared",
    "eval models": "asks hundreds of questions",
    "eval route": "asks hundreds of questions",
    "eval router": "needs recorded outcomes",
    "eval cache": "needs recorded questions",
    "eval guardrails": "needs labelled texts",
    "router train": "needs recorded outcomes",
    "cache.verify.train": "trains for minutes on data that is not in the repository",
}
SHELLS = {"sh", "bash", "shell", "console"}
PRICE = "{input_usd_per_million_tokens: 1, output_usd_per_million_tokens: 1}"
STUB = f"{{upstream: {{base_url: 'http://127.0.0.1:9/v1'}}, price: {PRICE}}}"
UNKNOWN = re.compile(r"unknown model '([^']+)'|live\.\w+\['([^']+)'\] is no model")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(path: Path) -> Iterator[Block]:
    lines = path.read_text("utf-8").splitlines()
    opened = -1
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if opened < 0:
            opened = number
            continue
        indent = len(lines[opened]) - len(lines[opened].lstrip())
        text = "\n".join(each[indent:] for each in lines[opened + 1 : number])
        yield Block(str(path.relative_to(ROOT)), opened + 2, lines[opened].strip("` \t"), text)
        opened = -1
    assert opened < 0, f"{path.name}:{opened + 1}: this block never ends"


BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]


def some(*languages: str) -> pytest.MarkDecorator:
    found = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", found, ids=str)


def commands_of(text: str) -> Iterator[tuple[int, str]]:
    """Commands of a shell block with the place of their first lines; one may go over several."""
    lines = text.splitlines()
    if any(line.startswith("$ ") for line in lines):  # a session: the other lines are what commands print
        lines = [line[2:] if line.startswith("$ ") else "" for line in lines]
    begin = 0
    for number, line in enumerate(lines, 1):
        command = "\n".join(lines[begin:number])
        if line.endswith("\\") or (number < len(lines) and not is_whole(command)):
            continue
        if command.strip() and not command.lstrip().startswith("#"):
            yield begin, command
        begin = number


def is_whole(command: str) -> bool:
    return subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0


def reason_not_to_run(command: str) -> str | None:
    return next((reason for part, reason in NOT_RUN.items() if part in command), None)


@pytest.fixture(scope="module")
def served(start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """What `make serve` starts, with less KV cache."""
    folder = write_default_policies(tmp_path_factory.mktemp("default"))
    return start_module_server("--policies", str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: the repository, the commands in `.venv`, and a policy folder `my-policies`."""
    folder = tmp_path_factory.mktemp("reader")
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    commands = folder / ".venv" / "bin"
    commands.mkdir(parents=True)
    for name, arguments in (("penstock", "-m gateway.cli"), ("python", ""), ("pip", "-m pip")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    assert main(["init", str(folder / "my-policies"), "--embedded"]) == 0
    (folder / ".default").mkdir()
    write_default_policies(folder / ".default")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's own: an embedded model that says to have a long context."""
    folder = tmp_path_factory.mktemp("own") / "checkpoint"
    shutil.copytree(checkpoint_folder("builtin:pico-small"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    return folder


def adapted(text: str, checkpoint: Path) -> str:
    """With checkpoints that are here in place of a reader's own."""
    text = re.sub(r"/models/[\w.-]*(e5|bge|MiniLM)[\w.-]*", "builtin:all-minilm-l6-v2", text)
    return re.sub(r"/models/[\w.-]+", str(checkpoint), text)


def run(command: list[str], text: str, folder: Path, server: Server) -> subprocess.CompletedProcess[str]:
    text = re.sub(r"(127\.0\.0\.1|localhost):8080", server.root_url.removeprefix("http://"), text)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
        "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PENSTOCK_URL": server.root_url,
        "PENSTOCK_DATA_DIR": str(folder / "data"),
        "PENSTOCK_POLICIES": str(folder / ".default"),  # the default ones, with less KV cache
        "HOME": str(folder),
        "KEY": "sk-reader",
        "OPENAI_API_KEY": "sk-reader",
    }
    return subprocess.run(
        [*command, text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )


def remedy(place: str, what: str, found: str) -> str:
    return f"{place}: {what}\n{found[-3000:]}\nMend it, or name it in NOT_RUN of tests/e2e/test_readme.py."


@some(*SHELLS)
def test_shell(block: Block, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    script = []
    for place, command in commands_of(block.text):
        where = f"{block.document}:{block.line + place}"
        if reason_not_to_run(command) is None:
            # An error in a pipe or in `curl` is one of the block; `set -e` names no line.
            script.append(f"here={where}\n{re.sub(r'curl ', 'curl --fail-with-body -sS ', command)}")
        else:
            check_flags(where, command, capsys)
    if script:
        folder, served = request.getfixturevalue("folder"), request.getfixturevalue("served")
        if "penstock init my-policies" in block.text:  # nothing is overwritten: the block makes the folder
            shutil.rmtree(folder / "my-policies")
        script = [adapted(each, request.getfixturevalue("checkpoint")) for each in script]
        text = "set -eEo pipefail\ntrap 'echo failed at $here' ERR\n" + "\n".join(script)
        done = run(["bash", "-c"], text, folder, served)
        assert done.returncode == 0, remedy(str(block), f"exit code {done.returncode}", done.stdout)


def check_flags(where: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """AssertionError for a `penstock` command or flag that there is not."""
    words = re.sub(r"\s#.*|\\\n", "", command)
    found = re.match(r"(?:\w+=\S* )*(?:\S*/)?penstock ((?:[a-z]\S*\s*)*)(.*)", words, re.S)
    if found is None:
        return
    with pytest.raises(SystemExit) as ended:
        main([*found[1].split(), "--help"])
    shown = capsys.readouterr()
    assert ended.value.code == 0, remedy(where, "no such command", shown.err)
    for flag in re.findall(r"(?<!\S)--[a-z-]+", found[2]):
        assert re.search(rf"{flag}\b(?!-)", shown.out), remedy(where, f"no such flag: {flag}", shown.out)


@some("python")
def test_python(block: Block, folder: Path, served: Server) -> None:
    done = run([sys.executable, "-c"], block.text, folder, served)
    assert done.returncode == 0, remedy(str(block), f"exit code {done.returncode}", done.stdout)


@some("yaml")
def test_yaml(block: Block, tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((ROOT / "policies" / "schema.json").read_text())
    document = yaml.safe_load(block.text)
    sections = schema["$defs"]["Document"]["properties"].keys()
    if not isinstance(document, dict) or not document.keys() & sections:
        return  # another program's
    (tmp_path / "block.yaml").write_text("\n" * (block.line - 1) + adapted(block.text, checkpoint))
    if "connection:" in block.text:  # what another block makes with openssl
        made = make_certificates(tmp_path)
        Path(made.certificate).rename(tmp_path / "gateway.pem")
        Path(made.key).rename(tmp_path / "gateway-key.pem")
    models = {"vectors": "{encoder: {checkpoint: 'builtin:all-minilm-l6-v2'}}", "other": STUB}
    while True:
        text = "\n".join(f"  {json.dumps(name)}: {entry}" for name, entry in models.items())
        (tmp_path / "mentioned.yaml").write_text(f"models:\n{text}\n")
        code = main(["check", str(tmp_path)])
        shown = capsys.readouterr()
        mentioned = {one or other for one, other in UNKNOWN.findall(shown.err)} - models.keys()
        if code == 0 or not mentioned:
            break
        models |= dict.fromkeys(mentioned, STUB)
    assert code == 0, remedy(str(block), "`penstock check` refuses it", shown.err)


def test_json_is_json() -> None:
    for block in BLOCKS:
        if block.language == "json":
            json.loads(block.text)


def test_every_language_is_known() -> None:
    """Blocks in another one would not be looked at; one without a name is no code."""
    known = SHELLS | {"python", "yaml", "json", ""}
    assert [f"{block}: {block.language}" for block in BLOCKS if block.language not in known] == []
