"""What logs show: no configured key, tracebacks included, and no URL of other libraries."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from gateway.log import FORMAT, WithoutSecrets, hide, without_hidden
from gateway.settings import Settings, environment_secrets

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


def test_hidden_values_are_in_no_line() -> None:
    settings = Settings(
        api_keys=("sk-canary",),
        upstream_api_keys={"m": "up-canary"},
        redis_url="redis://:pass-canary@host/0",
        upstream_proxies={"m": "http://me:proxy-canary@host"},
    )
    hide(settings.secrets)
    formatter = WithoutSecrets(FORMAT)
    try:
        raise ValueError("sk-canary")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("x", 40, "", 1, "up-canary %s", ("pass-canary proxy-canary",), info)
    assert "canary" not in formatter.format(record)
    assert "Traceback" in formatter.format(record)


def test_keys_in_the_environment_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEYS", "one-canary, two-canary")
    monkeypatch.setenv("FAR_API_KEY", "three-canary")
    hide(environment_secrets())
    assert "canary" not in without_hidden("one-canary two-canary three-canary")
