"""What `penstock engine` refuses before it becomes the engine process; e2e/test_remote_engines runs it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.cli.run_engine import engine_of, listen_address
from gateway.settings import SettingsError
from policies.document import EngineModel, ModelEntry, Policies
from policies.engine_addresses import Address
from policies.upstream import UpstreamModel

ENGINE = ModelEntry(engine=EngineModel(checkpoint="builtin:pico-small"))
UPSTREAM = ModelEntry(upstream=UpstreamModel(base_url="https://h/v1"))


def test_which_model() -> None:
    one = Policies(models={"a": ENGINE, "u": UPSTREAM})
    two = Policies(models={"alpha": ENGINE, "beta": ENGINE})
    assert engine_of(one, None) == engine_of(one, "a") == "a" and engine_of(two, "beta") == "beta"
    for policies, name, words in (
        (two, None, "several engines: add --model, one of alpha, beta"),
        (two, "alpa", "did you mean 'alpha'"),
        (one, "u", "is no model with an engine"),
        (Policies(models={"u": UPSTREAM}), None, "no model with an engine"),
    ):
        with pytest.raises(SettingsError, match=words):
            engine_of(policies, name)


def test_where_to_listen() -> None:
    assert listen_address("tcp://127.0.0.1:0") == Address("tcp", "127.0.0.1", 0)
    for text, words in (
        ("7600", "--listen '7600' is no address"),
        (
            "tcp://0.0.0.0:7600",
            "--listen tcp://0.0.0.0:7600 would send prompts over the network in the clear",
        ),
        ("tcp://localhost:70000", "use 1 to 65535"),
    ):
        with pytest.raises(SettingsError, match=words):
            listen_address(text)


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.yaml").write_text("models: {m: {engine: {checkpoint: /nowhere}}}\n")
    assert main(["engine", "--policies", str(tmp_path), "--listen", "tcp://127.0.0.1:0"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "models.m.engine.checkpoint" in error and "/nowhere" in error
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        (tmp_path / "m.yaml").write_text('models: {m: {engine: {checkpoint: "builtin:pico-small"}}}\n')
        assert main(["engine", "--policies", str(tmp_path), "--listen", address]) == 2
    assert "in use; choose another --listen" in capsys.readouterr().err
