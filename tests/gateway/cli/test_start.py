"""What is refused before anything starts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.cli.start import check_settings, prepare
from gateway.settings import Settings, SettingsError
from tests.backend.tokenizer.checkpoints import save_byte_level


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_missing_ca_bundle_is_found_first_and_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text(
        "models: {far: {upstream: {base_url: 'https://h/v1', ca_bundle: none.pem}}}\n"
    )
    folder = ["--policies", str(tmp_path), "--port", "0"] if command == "serve" else [str(tmp_path)]
    assert main([command, *folder]) == 2
    printed = capsys.readouterr().err
    place = f"{tmp_path / 'p.yaml'}:1:53: " if command == "check" else ""
    assert printed.startswith(f"penstock: {place}models.far.upstream.ca_bundle: the CA bundle '")
    assert "No such file" in printed


@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_a_checkpoint_without_files_is_found_before_anything_starts(
    has_tokenizer: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if has_tokenizer:
        save_byte_level(tmp_path)
    assert main(["serve", "--port", "0", "--only", "--model", f"q={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("penstock: --model q: ") and said.count("\n") == 1
    assert ("safetensors" if has_tokenizer else "tokenizer") in said
    (tmp_path / "p.yaml").write_text("models: {q: {engine: {checkpoint: .}}}\n")
    assert main(["serve", "--port", "0", "--policies", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("penstock: models.q.engine.checkpoint: ") and said.count("\n") == 1


def test_only_the_models_of_flags() -> None:
    options = argparse.Namespace(only=True, policies=None, model=["m=builtin:pico-small"], upstream=[])
    policies = prepare(options, {}).policies
    assert (list(policies.models), policies.routes) == (["m"], {})


def test_only_needs_flags_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--only"]) == 2
    assert "--only leaves no model" in capsys.readouterr().err
    folder = ["--policies", str(tmp_path), "--upstream", "gpt=http://h"]
    assert main(["serve", "--only", *folder]) == 2
    assert "--only is for a start without policies" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    check_settings(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_other_addresses_need_one(host: str) -> None:
    with pytest.raises(SettingsError, match="API key"):
        check_settings(Settings(host=host))
    check_settings(Settings(host=host, api_keys=("k",)))


def test_a_keys_file_opens_other_addresses_when_it_is_good(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    chosen = Settings(host="0.0.0.0", keys_file=str(path))
    with pytest.raises(SettingsError, match="does not exist"):
        check_settings(chosen)
    path.touch(0o600)
    path.write_text(f'{{"sha256": "{"a" * 64}"}}')
    check_settings(chosen)
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="has mode 0644"):
        check_settings(chosen)
