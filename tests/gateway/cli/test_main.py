"""The command line: what it accepts, what it refuses, and the error texts."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import main as cli
from gateway.cli.main import with_flag_models
from gateway.cli.policy_schema import schema_text
from gateway.settings import Settings, SettingsError
from policies.document import Policies, Route
from policies.load import load_policies
from tests.backend.tokenizer.checkpoints import save_byte_level

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
    assert cli.main(["schema"]) == 0
    assert capsys.readouterr().out == schema_text()


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["serve", "--host", "0.0.0.0"], {}, "add --api-key KEY (or set PENSTOCK_API_KEYS)"),
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
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_missing_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    done = penstock("serve", "--port", "0", "--model", f"mine={tmp_path / 'none'}")
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "give the folder that holds config.json" in done.stderr


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_missing_ca_bundle_is_found_first_and_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text(
        "models: {far: {upstream: {base_url: 'https://h/v1', ca_bundle: none.pem}}}\n"
    )
    folder = ["--policies", str(tmp_path), "--port", "0"] if command == "serve" else [str(tmp_path)]
    assert cli.main([command, *folder]) == 2
    printed = capsys.readouterr().err
    place = f"{tmp_path / 'p.yaml'}:1:53: " if command == "check" else ""
    assert printed.startswith(f"penstock: {place}models.far.upstream.ca_bundle: the CA bundle '")
    assert "No such file" in printed


@pytest.mark.parametrize("missing", ["openai", "rich", "httpx2"])
def test_eval_without_its_packages_names_the_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in list(sys.modules):
        if module.startswith("gateway.evaluation.") or module.partition(".")[0] == missing:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    assert cli.main(["eval", "models"]) == 2
    assert f"`penstock eval` needs {missing}: pip install 'penstock[eval]'" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["gateway.evaluation.runner", "backend.pico.tasks.gone"])
def test_a_broken_import_of_our_own_is_not_a_missing_package(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "gateway.evaluation.command":
                raise ModuleNotFoundError(f"No module named {broken!r}", name=broken)

    monkeypatch.delitem(sys.modules, "gateway.evaluation.command", raising=False)
    monkeypatch.delattr("gateway.evaluation.command", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=broken):
        cli.main(["eval", "models"])


def test_a_checkpoint_that_no_engine_serves_is_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt9", "architectures": ["Gpt9ForCausalLM"]}')
    done = penstock("serve", "--port", "0", "--model", f"mine={tmp_path}")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("penstock: --model mine: ") and "config.json" in done.stderr


@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_a_checkpoint_without_files_is_found_before_anything_starts(
    has_tokenizer: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if has_tokenizer:
        save_byte_level(tmp_path)
    assert cli.main(["serve", "--port", "0", "--only", "--model", f"q={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("penstock: --model q: ") and said.count("\n") == 1
    assert ("safetensors" if has_tokenizer else "tokenizer") in said
    (tmp_path / "p.yaml").write_text("models: {q: {engine: {checkpoint: .}}}\n")
    assert cli.main(["serve", "--port", "0", "--policies", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("penstock: models.q.engine.checkpoint: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("models", "upstreams"),
    [
        (["a=builtin:pico-small", "a=builtin:pico-large"], []),
        (["a=builtin:pico-small"], ["a=openai"]),
        ([], ["a=openai", "b=groq", "a=openai"]),
    ],
)
def test_a_name_given_by_two_flags_is_refused(models: list[str], upstreams: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"--\w+ a: two flags give a model this name"):
        cli.with_flag_models(Policies(), models, upstreams)


@pytest.mark.parametrize(
    ("upstream", "words"),
    [
        ("x=opnai", "--upstream x has neither a URL nor the name of a known service; did you mean 'openai'"),
        ("x=ftp://h/v1", "has neither a URL nor"),
        ("x=https://me:hunter22@h/v1", "without user, password or query: the policies name a key's variable"),
        ("x=http://h:99999/v1", "the URL has a port that is not"),
        ("x=https://h/v1/chat/completions", "cannot be used: the URL ends in /chat/completions"),
    ],
)
def test_addresses_of_upstream_flags(upstream: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        cli.with_flag_models(Policies(), [], [upstream])
    assert words in str(caught.value)
    assert not [part for part in ("hunter22", "regex", "Expected") if part in str(caught.value)]


def test_only_the_models_of_flags() -> None:
    options = argparse.Namespace(only=True, policies=None, model=["m=builtin:pico-small"], upstream=[])
    _, _, policies, _ = cli._prepare(options, {})
    assert (list(policies.models), policies.routes) == (["m"], {})


def test_only_needs_flags_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--only"]) == 2
    assert "--only leaves no model" in capsys.readouterr().err
    folder = ["--policies", str(tmp_path), "--upstream", "gpt=http://h"]
    assert cli.main(["serve", "--only", *folder]) == 2
    assert "--only is for a start without policies" in capsys.readouterr().err


def test_taken_port_is_one_sentence() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = penstock("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "Address already in use; choose another --host or --port" in done.stderr


def test_flag_models() -> None:
    policies = cli.with_flag_models(
        Policies(), ["mine=/models/x"], ["gpt=https://h/v1#gpt-9", "same=http://h"]
    )
    engine = policies.models["mine"].engine
    assert engine is not None and engine.checkpoint == "/models/x"
    gpt, same = policies.models["gpt"].upstream, policies.models["same"].upstream
    assert gpt is not None and (gpt.base_url, gpt.model) == ("https://h/v1", "gpt-9")
    assert same is not None and same.model is None
    with pytest.raises(SettingsError, match="route"):
        cli.with_flag_models(Policies(routes={"gpt": Route(model="x")}), [], ["gpt=http://h"])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    cli.check_settings(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_other_addresses_need_one(host: str) -> None:
    with pytest.raises(SettingsError, match="API key"):
        cli.check_settings(Settings(host=host))
    cli.check_settings(Settings(host=host, api_keys=("k",)))


def test_flags_do_not_remove_a_routes_adapter(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "models: {small: {engine: {checkpoint: /c, adapters: {polite: {path: /p}}}}}\n"
        "routes: {kind: {model: polite}}\n"
    )
    policies = load_policies(tmp_path)
    assert with_flag_models(policies, ["other=/o"], []).routes["kind"].model == "polite"
    with pytest.raises(SettingsError, match="routes.kind leads to 'polite', an adapter of a model that"):
        with_flag_models(policies, ["small=/other"], [])
