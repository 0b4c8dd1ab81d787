"""Google's Gemini API: a call comes whole, with a signature that a model since Gemini 3 wants back."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.apis.scripted import SIGNATURE, Part, Wants, pieces

USAGE = {"promptTokenCount": 5, "candidatesTokenCount": 3, "totalTokenCount": 8}


class GeminiApi:
    """Implements `scripted.Dialect`."""

    paths = ("/v1/models/gemini-3:generateContent", "/v1/models/gemini-3:streamGenerateContent")
    media_type = "text/event-stream"
    first_text = 0

    def wants(self, body: dict[str, Any]) -> Wants:
        last = json.dumps(body["contents"][-1])
        config = body.get("generationConfig", {})
        for content in body["contents"]:
            for part in content["parts"]:
                assert "functionCall" not in part or part["thoughtSignature"], "a 400 of the real API"
        return Wants(
            last,
            config.get("thinkingConfig", {}).get("includeThoughts", False),
            "tools" in body,
            "responseJsonSchema" in config,
            "inlineData" in last,
            "functionResponse" in last,
        )

    def whole(self, parts: list[Part]) -> dict[str, Any]:
        return _response([_part(part) for part in parts], finish="STOP")

    def events(self, parts: list[Part]) -> list[bytes]:
        found = [_response([_part(piece)]) for part in parts for piece in _cut(part)]
        found.append(_response([{"text": ""}], finish="STOP"))
        return [b"data: %s\r\n\r\n" % json.dumps(event).encode() for event in found]

    def error(self) -> tuple[dict[str, Any], dict[str, str]]:
        error = {"code": 429, "message": "scripted", "status": "RESOURCE_EXHAUSTED"}
        return {"error": error}, {}


def _cut(part: Part) -> list[Part]:
    return [part] if part[0] == "call" else pieces(part)


def _part(part: Part) -> dict[str, Any]:
    kind, text = part
    if kind == "call":
        call = {"id": "call_1", "name": "calculator", "args": json.loads(text)}
        return {"functionCall": call, "thoughtSignature": SIGNATURE}
    return {"text": text} | ({"thought": True} if kind == "reasoning" else {})


def _response(parts: list[dict[str, Any]], finish: str = "") -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": "there"}
