"""The command line: what it accepts, what it refuses, and the error texts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.cli.policy_schema import schema_text

ROOT = Path(__file__).parents[3]


def penstock(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_check_of_the_default_folder() -> None:
    done = penstock("check", "policies/default")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pico-small (engine), pico-large (engine), all-minilm-l6-v2 (encoder)" in done.stdout
    assert "auto -> pico-small" in done.stdout and "best -> pico-large" in done.stdout


def test_check_shows_no_configured_key(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "models: {plain-canary-key: {upstream: {base_url: 'http://127.0.0.1:9/v1'}}}"
    )
    done = penstock("check", str(tmp_path), PENSTOCK_API_KEYS="plain-canary-key")
    assert done.returncode == 0 and "models  *** (upstream)" in done.stdout and "canary" not in done.stdout


def test_check_names_every_place(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("models:\n  x: {engin: {}}\nroutes:\n  auto: {model: y}\n")
    done = penstock("check", str(tmp_path))
    assert done.returncode == 2
    assert (
        f"{tmp_path / 'a.yaml'}:2:7: unknown key 'engin' in models.x; did you mean 'engine'?" in done.stderr
    )
    assert f"{tmp_path / 'a.yaml'}:4:10: route 'auto' leads to the unknown model 'y'" in done.stderr
    assert "Traceback" not in done.stderr


def test_schema_prints_the_published_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == schema_text()


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (
            ["serve", "--host", "0.0.0.0"],
            {},
            "add --api-key KEY (or set PENSTOCK_API_KEYS or PENSTOCK_KEYS_FILE)",
        ),
        (["serve", "--host", "my.host"], {}, "can be reached from other machines"),
        (["serve", "--port", "70000"], {}, "--port 70000 is not a port"),
        (["serve", "--workers", "0"], {}, "use 1 or more"),
        (["serve", "--api-key", ""], {}, "an API key is empty"),
        (["serve", "--drain-timeout", "0"], {}, "more than 0 seconds"),
        (["serve", "--model", "x"], {}, "must have the form NAME=CHECKPOINT_DIR"),
        (["serve", "--upstream", "x=ftp://h"], {}, "has neither a URL nor the name"),
        (["serve", "--upstream", "x=https://h:99999/v1"], {}, "the URL has a port that is not"),
        (["serve", "--upstream", "auto=http://h/v1"], {}, "the name of a route"),
        (["serve", "--policies", "/nowhere"], {}, "/nowhere: is neither a folder"),
        (["serve"], {"PENSTOCK_PROT": "1"}, "did you mean PENSTOCK_PORT?"),
        (["serve"], {"PENSTOCK_POLICIES": "/nowhere"}, "/nowhere: is neither a folder"),
        (["chat", "--url", "localhost:8080", "hi"], {}, "must begin with http"),
        (["chat", "--url", "http://h:99999", "hi"], {}, "name HOST or HOST:PORT"),
        (["adapters", "list", "--url", "http://[::1"], {}, "name HOST or HOST:PORT"),
        (["adapters", "list"], {"PENSTOCK_URL": "http://h:port"}, "name HOST or HOST:PORT"),
        (["eval", "models", "--url", "http://[::1"], {}, "name HOST or HOST:PORT"),
        (["serve", "--model", "german=builtin:pico-small"], {}, "the name of an adapter"),
        (["serve", "--model", "pico-small:german=builtin:pico-small"], {}, "the name of an adapter"),
    ],
)
def test_refusals(
    arguments: list[str],
    environment: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_missing_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    done = penstock("serve", "--port", "0", "--model", f"mine={tmp_path / 'none'}")
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "give the folder that holds config.json" in done.stderr


def test_a_checkpoint_that_no_engine_serves_is_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt9", "architectures": ["Gpt9ForCausalLM"]}')
    done = penstock("serve", "--port", "0", "--model", f"mine={tmp_path}")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("penstock: --model mine: ") and "config.json" in done.stderr


def test_taken_port_is_one_sentence() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = penstock("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "Address already in use; choose another --host or --port" in done.stderr
