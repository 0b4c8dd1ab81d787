"""`penstock serve` in a company network: an upstream behind a proxy, with a private CA and HTTP/2."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.e2e.server import Server
from tests.gateway.providers.upstream.network import forward_proxy, tls_api


async def test_an_upstream_behind_proxy_private_ca_and_http2(tmp_path: Path) -> None:
    async with tls_api(tmp_path) as (api, ca_bundle):
        with forward_proxy(tmp_path) as proxy:
            policies = tmp_path / "policies"
            policies.mkdir()
            upstream = (
                f"base_url: '{api.url}', ca_bundle: '{ca_bundle}', http2: true, proxy: 'http://{proxy}'"
            )
            (policies / "models.yaml").write_text(f"models:\n  far:\n    upstream: {{{upstream}}}\n")
            server = Server(tmp_path / "log", "--policies", str(policies))
            try:
                server.wait_ready()
                async with httpx.AsyncClient(base_url=server.base_url) as client:
                    body = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
                    whole = await client.post("/chat/completions", json=body)
                    streamed = await client.post("/chat/completions", json={**body, "stream": True})
            finally:
                server.close()
    assert whole.status_code == 200 and whole.json()["choices"][0]["message"]["content"] == "hi"
    assert streamed.text.endswith("data: [DONE]\n\n") and streamed.text.count('"content": "') == 2
    assert api.versions == ["2", "2"]
