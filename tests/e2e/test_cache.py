"""The cache with a real engine, a real encoder and the shipped verifier."""

from __future__ import annotations

from pathlib import Path

import httpx
import yaml

from tests.e2e.conftest import StartServer

POLICIES = {
    "cache": {"mode": "semantic"},
    "models": {
        "pico-small": {"engine": {"checkpoint": "builtin:pico-small"}},
        "minilm": {"encoder": {"checkpoint": "builtin:all-minilm-l6-v2"}},
    },
}


def test_what_is_served_by_meaning_and_what_is_not(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(POLICIES))
    server = start_server("--policies", str(tmp_path))

    def ask(text: str, system: str = "Be brief.") -> tuple[str, str]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        body = {"model": "pico-small", "messages": messages, "max_tokens": 32}
        response = httpx.post(server.base_url + "/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        content: str = response.json()["choices"][0]["message"]["content"]
        return response.headers["x-penstock-cache"], content

    first = ask("Good morning, how are you?")
    assert first[0] == "miss"
    assert ask("Good morning, how are you?") == ("exact", first[1])
    assert ask("Good morning! How are you?") == ("semantic", first[1])
    assert ask("Good morning! How are you?", "Be rude.")[0] == "miss"
    assert ask("What is 17 plus 25?") == ("miss", "42")
    # Another number is another question, however alike; the stored answer is a draft, which changes nothing.
    assert ask("What is 17 plus 26?") == ("near", "43")
    assert (
        ask("What is the balance of my account?")[0] == ask("What is the balance of my account?")[0] == "miss"
    )
    assert server.metric("penstock_cache_requests_total", outcome="semantic") == 1
