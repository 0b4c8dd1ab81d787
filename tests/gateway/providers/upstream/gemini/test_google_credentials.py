"""Tokens of Google Cloud, from a service account's key and a token endpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.errors import UpstreamFailed
from gateway.providers.upstream.gemini.google_credentials import GoogleCredentials
from gateway.providers.upstream.gemini.provider import GeminiProvider
from policies.upstream import UpstreamModel
from tests.gateway.providers.upstream.gemini.calls import ANSWER, call
from tests.gateway.providers.upstream.scripted_server import ScriptedServer, always, response, serving

TOKEN = {"access_token": "ya29.canary", "expires_in": 3600, "token_type": "Bearer"}


def write_key(path: Path, token_uri: str) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "a@b.c", "token_uri": token_uri}
    path.write_text(json.dumps({**account, "private_key": private.decode(), "project_id": "p"}))


def vertex(server: ScriptedServer) -> GeminiProvider:
    base_url = f"{server.base_url}/projects/p/locations/l/publishers/google"
    upstream = UpstreamModel(base_url=base_url, api="gemini", model="gemini-3-x", credentials="google")
    return GeminiProvider("here", upstream)


async def test_a_token_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = always(response(json.dumps({**ANSWER, **TOKEN}).encode()))
    async with serving(replies) as server:
        write_key(tmp_path / "key.json", f"http://127.0.0.1:{server.port}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        provider = vertex(server)
        for _ in range(2):
            await provider.chat(call())
        await provider.close()
        paths = [seen.head.split()[1] for seen in server.seen]
        headers = server.seen[-1].headers
    path = "/v1/projects/p/locations/l/publishers/google/models/gemini-3-x:generateContent"
    assert paths == ["/token", path, path]
    assert headers["authorization"] == "bearer ya29.canary" and "x-goog-api-key" not in headers


async def test_without_credentials_requests_fail_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "canary.json"))
    with pytest.raises(UpstreamFailed, match="no access token of Google for model 'm'") as caught:
        await GoogleCredentials("m").headers()
    assert "canary" not in caught.value.message
