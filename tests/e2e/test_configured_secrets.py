"""No configured key or password is shown, whatever is broken in the policies around it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from gateway.cli.main import main
from tests.e2e.conftest import StartServer
from tests.e2e.upstream import Upstream

SECRETS = {
    "own": "plain-own-canary",
    "upstream": "sk-upstream-canary-1",
    "hook": "H00KcanaryH00Kcanary",
    "redis": "redis-pass-canary",
    "proxy": "proxy%2Dpass%2Dcanary",
}
GOOD = """\
admin: {{principals: [{id}]}}
models:
  one: {{upstream: {{base_url: "{url}", api_key_env: UPSTREAM_KEY}}}}
guardrails:
  profiles: {{p: {{hooks: {{h: {{url: "http://127.0.0.1:9/x", api_key_env: HOOK_KEY}}}}}}}}
"""
BROKEN = (
    "tenants: {a: {keys: [KEY]}}",
    "tenants: {KEY: {limits: {usd_per_day: x}}}",
    "tenants:\n  a:\n    keys: [KEY\n  b: {}",
    "tenants: {a: {keys: [*KEY]}}",
    "probes: {p: {ask: 'KEY', tenant: KEY, headers: {x-a: KEY}, expect: {model: two}}}",
    "probes: {p: {request: {model: KEY, temperature: KEY}, expect: {model: one}}}",
    "models: {two: {upstream: {base_url: 'http://h', api_key_env: KEY}}}",
    "models: {two: {upstream: {base_url: 'http://u:KEY@h/v1', api_key: KEY, KEY: KEY}}}",
    "models: {two: {upstream: {base_url: 'http://h', ca_bundle: KEY, proxy: 'http://u:KEY@p'}}}",
    "models: {two: {engine: {checkpoint: 'KEY'}}, three: {upstream: {base_url: 'http://KEY:70000'}}}",
    "routes: {r: {model: KEY, rules: [{when: \"tenant.name == 'KEY' &&\", model: KEY}]}}",
    "cache: {redis: {url_env: KEY}, mode: KEY, operators: [KEY]}",
    "replicas: {redis_url_env: 'redis://:KEY@h'}",
    "KEY: KEY",
    "KEY",
    "models: {KEY: {modle: 1}, B64: {modle: 1}}",
    "models:\n  ? 'FOLDED'\n  : {modle: 1}\n",
)


def test_no_answer_log_or_page_shows_a_secret(
    start_server: StartServer,
    upstream: Upstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = SECRETS["own"]
    good = tmp_path / "good.yaml"
    good.write_text(GOOD.format(url=upstream.base_url, id="key-" + sha256(own.encode()).hexdigest()[:8]))
    environment = {
        "UPSTREAM_KEY": SECRETS["upstream"],
        "HOOK_KEY": SECRETS["hook"],
        "HTTPS_PROXY": f"http://u:{SECRETS['proxy']}@127.0.0.1:9",
        "PENSTOCK_REDIS_URL": f"redis://:{SECRETS['redis']}@127.0.0.1:9/0",
    }
    server = start_server("--policies", str(tmp_path), "--workers", "2", api_key=own, environment=environment)
    shown: list[str] = []
    with httpx.Client(base_url=server.root_url, headers=server.headers, timeout=60) as http:
        for secret in SECRETS.values():
            for number, text in enumerate(BROKEN):
                text = text.replace("FOLDED", f"{secret[:7]}\n      {secret[7:]}")
                text = text.replace("B64", b64encode(secret.encode()).decode())
                (tmp_path / f"{number:02}.yaml").write_text(text.replace("KEY", secret))
            answer = http.post("/admin/policies", headers={"content-type": "application/json"})
            assert answer.status_code == 400, answer.text
            assert {f"{number:02}.yaml" in answer.text for number, _ in enumerate(BROKEN)} == {True}
            shown += [answer.text, http.get("/admin/policies").text, http.get("/health/ready").text]
            assert main(["check", str(tmp_path)]) == 2
        monkeypatch.setenv("PENSTOCK_API_KEYS", own)
        main(["policy", "versions", "--url", server.root_url])
        shown += [http.get("/metrics").text, *capsys.readouterr(), server.log]
    for secret in SECRETS.values():
        core = secret.replace("%2D", "-")
        forms = (secret, core, f"{secret[:7]} {secret[7:]}", b64encode(secret.encode()).decode())
        assert not [text[:800] for text in shown for form in forms if form in text]
