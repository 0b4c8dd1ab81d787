"""Moderations, speech and transcriptions of an upstream, through the official client and the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from aiohttp import web
from openai.types import Moderation

from tests.e2e.conftest import StartServer
from tests.e2e.http_thread import HttpThread

AUDIO = bytes(range(256)) * 400
POLICY = """
models:
  remote: {{upstream: {{base_url: "{url}"}}}}
passthrough:
  /v1/moderations: {{model: remote}}
  /v1/audio: {{model: remote}}
"""


class Media(HttpThread):
    """An upstream with three more endpoints of OpenAI's."""

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/moderations", self._moderate)
        router.add_post("/v1/audio/speech", self._speak)
        router.add_post("/v1/audio/transcriptions", self._transcribe)

    async def _moderate(self, request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        names = [field.alias or name for name, field in _fields("categories")]
        result = {
            "flagged": True,
            "categories": dict.fromkeys(names, True),
            "category_scores": dict.fromkeys(names, 0.5),
            "category_applied_input_types": {key: ["text"] for key in names},
        }
        return web.json_response({"id": "modr-1", "model": "m", "results": [result] * len(texts)})

    async def _speak(self, request: web.Request) -> web.Response:
        assert (await request.json())["voice"] == "alloy"
        return web.Response(body=AUDIO, content_type="audio/mpeg")

    async def _transcribe(self, request: web.Request) -> web.Response:
        file = (await request.post())["file"]
        assert isinstance(file, web.FileField)
        return web.json_response({"text": f"{len(file.file.read())} bytes"})


def _fields(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - pydantic's
    return Moderation.model_fields[name].annotation.model_fields.items()


@pytest.fixture
def client(start_server: StartServer, tmp_path: Path) -> Iterator[openai.OpenAI]:
    media = Media()
    (tmp_path / "policies.yaml").write_text(POLICY.format(url=media.base_url))
    server = start_server("--policies", str(tmp_path))
    with openai.OpenAI(
        base_url=server.base_url, api_key="none", max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield client
    media.close()


def test_the_official_client_reaches_an_upstreams_other_endpoints(client: openai.OpenAI) -> None:
    moderation = client.moderations.create(input=["a", "b"])
    assert len(moderation.results) == 2 and moderation.results[0].flagged
    speech = client.audio.speech.create(input="hello", model="tts-1", voice="alloy")
    assert speech.content == AUDIO
    transcription = client.audio.transcriptions.create(file=("a.mp3", AUDIO), model="whisper-1")
    assert transcription.text == f"{len(AUDIO)} bytes"
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a cat", model="dall-e-3")
