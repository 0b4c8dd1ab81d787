"""Addresses of engines elsewhere, and the keys that exclude them."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.engine_addresses import Address, parse_address, parse_dns
from policies.errors import PolicyError
from policies.load import load_policies

MODEL = "models:\n  m:\n    engine:\n      checkpoint: builtin:pico-small\n"


def load(folder: Path, keys: str) -> list[str]:
    """The problems of an engine with these keys."""
    (folder / "m.yaml").write_text(MODEL + "".join(f"      {line}\n" for line in keys.splitlines()))
    try:
        load_policies(folder)
    except PolicyError as error:
        return [f"{each.place.line} {each.message}" for each in error.problems]
    return []


@pytest.mark.parametrize(
    "text", ["tcp://127.0.0.1:7600", "tcp://[::1]:1", "tcp://localhost:65535", "tls://engine-0.example:7600"]
)
def test_addresses(tmp_path: Path, text: str) -> None:
    assert str(parse_address(text)) == text and parse_address(text).fault == ""
    assert load(tmp_path, f"addresses: ['{text}']") == []


@pytest.mark.parametrize("text", ["tls://h", "http://h:1", "tcp://h:1/x", "tcp://:1", "tcp://h:123456", ""])
def test_what_is_no_address(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="is no address; write tls://HOST:PORT"):
        parse_address(text)
    (problem,) = load(tmp_path, f"addresses: ['{text}']")
    assert problem.startswith("5 models.m.engine.addresses.0")


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "engine.example", "::", "fd00::1"])
def test_prompts_do_not_cross_a_network_in_the_clear(tmp_path: Path, host: str) -> None:
    address = Address("tcp", host, 7600)
    assert "in the clear" in address.fault
    (problem,) = load(tmp_path, f"addresses:\n- tcp://127.0.0.1:1\n- {address}")
    assert problem.startswith(f"7 models.m.engine.addresses.1 {address} would send prompts over the network")


def test_ports() -> None:
    assert "port 70000; use 1 to 65535" in Address("tcp", "localhost", 70000).fault
    assert "port 0;" in Address("tcp", "localhost", 0).fault


def test_what_excludes_each_other(tmp_path: Path) -> None:
    addresses = "addresses: ['tcp://localhost:1']"
    (problem,) = load(tmp_path, f"{addresses}\nreplicas: 2")
    assert "replicas counts engine processes of this machine, and addresses names others" in problem
    (problem,) = load(tmp_path, "addresses: ['tcp://localhost:1', 'tcp://localhost:1']")
    assert "addresses.1 tcp://localhost:1 is listed twice" in problem
    (problem,) = load(tmp_path, f"{addresses}\ndns: engines:7600")
    assert "6 models.m.engine.dns and addresses exclude each other" in problem
    (problem,) = load(tmp_path, "dns: engines:7600\nreplicas: 2")
    assert "and dns names others" in problem


def test_names(tmp_path: Path) -> None:
    assert parse_dns("engines.svc:7600") == Address("tls", "engines.svc", 7600)
    assert parse_dns("tcp://localhost:1") == Address("tcp", "localhost", 1)
    assert load(tmp_path, "dns: engines.svc:7600") == []
    (problem,) = load(tmp_path, "dns: tcp://engines.svc:7600")
    assert "in the clear" in problem
    (problem,) = load(tmp_path, "dns: engines.svc:0")
    assert "port 0" in problem


def test_what_both_sides_show(tmp_path: Path) -> None:
    files = "{ca: ca.pem, certificate: c.pem, key: k.pem, token_env: TOKEN}"
    assert load(tmp_path, f"dns: engines:1\nconnection: {files}") == []
    connection = load_policies(tmp_path).models["m"].engine.connection  # type: ignore[union-attr]
    assert connection is not None and connection.ca == str(tmp_path / "ca.pem")
    (problem,) = load(tmp_path, "dns: engines:1\nconnection: {certificate: c.pem}")
    assert "one of certificate and key" in problem
    (problem,) = load(tmp_path, "connection: {token_env: TOKEN}")
    assert "connection is for engines elsewhere; add addresses or dns" in problem
    (problem,) = load(tmp_path, "dns: engines:1\nconnection: {token: s3cret}")
    assert "unknown key" in problem and "s3cret" not in problem
