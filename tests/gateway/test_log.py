"""What other libraries log: no URL, whose path and query are the caller's."""

from __future__ import annotations

import subprocess
import sys

REQUEST = """
import httpx2
from gateway.log import configure_logging

configure_logging()
answer = httpx2.MockTransport(lambda request: httpx2.Response(404))
httpx2.Client(transport=answer).get("http://upstream/v1/audio?voice=canary")
"""


def test_urls_of_requests_to_upstreams_are_not_logged() -> None:
    found = subprocess.run([sys.executable, "-c", REQUEST], capture_output=True, text=True, check=True)
    assert "canary" not in found.stdout + found.stderr
