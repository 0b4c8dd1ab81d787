"""Prompts of models whose other inputs are not loaded, and of those without a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.tokenizer import Tokenizer
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from tests.backend.tokenizer.checkpoints import save_byte_level
from tests.gateway.conftest import CHATML, MakeApp, http_client

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"text_config": {"hidden_size": 64}}, "this checkpoint's image tower is not loaded; send text only"),
        ({}, "images ('image_url' parts) are not supported by this model"),
    ],
)
async def test_an_image(
    make_app: MakeApp, provider: EngineProvider, tmp_path: Path, config: dict[str, object], reason: str
) -> None:
    folder = save_byte_level(tmp_path, chat_template=CHATML)
    (folder / "config.json").write_text(json.dumps(config))
    service = EngineService(Replicas([provider.client]), Tokenizer.from_checkpoint(folder))
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}]
    async with http_client(make_app(EngineProvider(service, "ours"))) as http:
        response = await http.post("/v1/chat/completions", json={"model": "ours", "messages": messages})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages[0].content[1].type")
    assert reason in error["message"].lower()


async def test_a_base_model_completes_but_does_not_chat(
    make_app: MakeApp, provider: EngineProvider, tmp_path: Path
) -> None:
    service = EngineService(Replicas([provider.client]), Tokenizer.from_checkpoint(save_byte_level(tmp_path)))
    message = {"role": "user", "content": "Hello"}
    async with http_client(make_app(EngineProvider(service, "ours"))) as http:
        chat = await http.post("/v1/chat/completions", json={"model": "ours", "messages": [message]})
        done = await http.post("/v1/completions", json={"model": "ours", "prompt": "Hello", "max_tokens": 3})
    assert chat.status_code == 400
    assert "no chat template: use /v1/completions" in chat.json()["error"]["message"]
    assert done.status_code == 200 and done.json()["usage"]["completion_tokens"] == 3
