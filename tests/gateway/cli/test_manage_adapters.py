"""`penstock adapters` against a scripted gateway, and what it prints."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from gateway.cli.main import main
from gateway.cli.manage_adapters import AdapterCommand
from gateway.settings import SettingsError

ANSWERS: dict[str, tuple[int, dict[str, Any]]] = {
    "/v1/models": (200, {"data": [{"id": "base"}, {"id": "german", "parent": "base"}]}),
    "/v1/load_lora_adapter": (200, {"id": "german", "parent": "base"}),
    "/v1/unload_lora_adapter": (404, {"error": {"message": "no adapter is called 'x' here"}}),
}


class Gateway(BaseHTTPRequestHandler):
    seen: ClassVar[list[tuple[str, str | None, Any]]] = []

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.seen.append((self.path, self.headers.get("authorization"), body))
        status, answer = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    Gateway.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_list_load_and_unload(url: str) -> None:
    out = io.StringIO()
    command = AdapterCommand(f"{url}/v1/", "k", out)
    assert command.list() == 0 and command.load("german", "/a/b", None) == 0
    assert out.getvalue() == "german  on base\ngerman is served on base\n"
    with pytest.raises(SettingsError, match="no adapter is called 'x' here"):
        command.unload("x", "base")
    assert Gateway.seen == [
        ("/v1/models", "Bearer k", None),
        ("/v1/load_lora_adapter", "Bearer k", {"lora_name": "german", "lora_path": "/a/b"}),
        ("/v1/unload_lora_adapter", "Bearer k", {"lora_name": "x", "base_model": "base"}),
    ]


def test_the_command_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapters", "load", "german", "/a/b", "--url", url, "--base", "base"]) == 0
    assert capsys.readouterr().out == "german is served on base\n"
    assert main(["adapters", "load", "german", "/a/b", "--url", url, "--force"]) == 0
    assert Gateway.seen[-1][2] == {"lora_name": "german", "lora_path": "/a/b", "force": True}
    assert main(["adapters", "unload", "x", "--url", url]) == 2
    assert "no adapter is called 'x' here" in capsys.readouterr().err
    assert main(["adapters", "list", "--url", "ftp://x"]) == 2


def test_an_invalid_field_is_named_as_on_the_command_line(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for param, message, shown in (
        ("base_model", "'base_model' must name: a, b.", "--base must name: a, b."),
        ("lora_name", "Invalid value for 'lora_name': x.", "Invalid value for NAME: x."),
        ("lora_path", "'lora_path' must not be ''.", "PATH must not be ''."),
        ("lora_name", "'base_model' is the name of a model.", "'base_model' is the name of a model."),
        (None, "'base_model' is odd.", "'base_model' is odd."),
    ):
        error = {"message": message, "param": param}
        monkeypatch.setitem(ANSWERS, "/v1/load_lora_adapter", (400, {"error": error}))
        assert main(["adapters", "load", "german", "/a/b", "--url", url]) == 2
        assert capsys.readouterr().err == f"penstock: {shown}\n"


def test_no_gateway() -> None:
    with pytest.raises(SettingsError, match="did not answer"):
        AdapterCommand("http://127.0.0.1:9", "", io.StringIO()).list()
