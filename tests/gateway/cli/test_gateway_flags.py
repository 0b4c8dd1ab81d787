"""Where the gateway is and the key for it: what cannot be sent is refused before anything is."""

from __future__ import annotations

import pytest

from gateway.cli.main import main

COMMANDS = [
    ["chat", "hi"],
    ["policy", "versions"],
    ["adapters", "list"],
    ["eval", "models"],
    ["eval", "route"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("flags", "variable", "words"),
    [
        (["--api-key", "ké"], "", "--api-key is empty or holds characters"),
        (["--api-key", ""], "", "--api-key is empty or holds characters"),
        ([], "a b", "PENSTOCK_API_KEYS must be keys of visible ASCII"),
        (["--url", "nowhere"], "", "--url 'nowhere' must"),
        (["--url", "http://[::1"], "", "--url 'http://[::1' must"),
    ],
)
def test_refused(
    command: list[str],
    flags: list[str],
    variable: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEYS", variable)
    assert main([*command, *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"penstock: {words}") and said.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_gateway_is_a_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--url", "http://127.0.0.1:9", "--api-key", "k"]) in (1, 2)
    said = capsys.readouterr().err
    assert said.startswith("penstock: ") and said.count("\n") == 1 and "127.0.0.1:9" in said
