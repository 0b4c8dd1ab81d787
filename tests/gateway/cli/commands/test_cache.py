"""`penstock cache invalidate` against a scripted gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from gateway.cli.main import main


class Gateway(BaseHTTPRequestHandler):
    seen: ClassVar[list[tuple[str, Any]]] = []

    def do_POST(self) -> None:
        self.seen.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"object": "cache.invalidation", "invalidated": 3}')

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>another server</html>")

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


def test_invalidate_sends_what_is_selected(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "invalidate", "--model", "pico-small", "--all-tenants", "--url", url]) == 0
    assert capsys.readouterr().out == "3 stored answers are forgotten\n"
    assert Gateway.seen == [("/v1/cache/invalidate", {"model": "pico-small", "all_tenants": True})]


def test_invalidate_needs_one_selector(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--model", "a", "--tag", "b"]):
        with pytest.raises(SystemExit) as ended:
            main(["cache", "invalidate", *words])
        assert ended.value.code == 2


def test_another_server_is_told_from_a_gateway(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "versions", "--url", url]) == 2
    assert "something else than JSON: it is no gateway" in capsys.readouterr().err
