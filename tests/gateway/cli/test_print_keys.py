"""Ids of keys are those that the gateway gives to tenants; keys themselves are never printed again."""

from __future__ import annotations

import io
import sys

import pytest

from gateway.auth import KeyRing
from gateway.cli.main import main


def test_ids_are_the_tenants_of_the_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEYS", "sk-first, sk-second")
    assert main(["keys", "id"]) == 0
    out = capsys.readouterr().out
    ring = KeyRing(["sk-first", "sk-second"])
    assert out.split() == [ring.identify(f"Bearer sk-{name}").tenant for name in ("first", "second")]
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-second\n\n"))
    assert main(["keys", "id", "--stdin"]) == 0
    assert capsys.readouterr().out.split() == out.split()[1:]


@pytest.mark.parametrize("given", ["", "\n", "sk-é\n"])
def test_what_is_no_key_is_not_quoted(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_API_KEYS", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert main(["keys", "id", *(["--stdin"] if given else [])]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("penstock: ") and "é" not in said.err


def test_a_new_key_and_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    found = set()
    for _ in range(2):
        assert main(["keys", "new"]) == 0
        _, key, _, name = capsys.readouterr().out.split()
        assert KeyRing([key]).identify(f"Bearer {key}").tenant == name
        found.add(key)
    assert len(found) == 2
