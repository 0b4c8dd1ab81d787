"""AWS Bedrock's Converse API."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.apis.scripted import SIGNATURE, Part, Wants, pieces
from tests.gateway.providers.upstream.bedrock.aws_events import event

USAGE = {"inputTokens": 5, "outputTokens": 3, "totalTokens": 8}
STOPS = {"call": "tool_use", "text": "end_turn"}


class BedrockApi:
    """Implements `scripted.Dialect`."""

    paths = ("/v1/model/anthropic.there/converse", "/v1/model/anthropic.there/converse-stream")
    media_type = "application/vnd.amazon.eventstream"
    first_text = 1

    def wants(self, body: dict[str, Any]) -> Wants:
        last = json.dumps(body["messages"][-1])
        return Wants(
            last,
            "thinking" in body.get("additionalModelRequestFields", {}),
            "toolConfig" in body,
            "outputConfig" in body,
            '"image"' in last,
            "toolResult" in last,
        )

    def whole(self, parts: list[Part]) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        for kind, text in parts:
            if kind == "call":
                content.append({"toolUse": {**_use(), "input": json.loads(text)}})
            elif kind == "reasoning":
                content.append(
                    {"reasoningContent": {"reasoningText": {"text": text, "signature": SIGNATURE}}}
                )
            else:
                content.append({"text": text})
        message = {"role": "assistant", "content": content}
        return {"output": {"message": message}, "stopReason": STOPS[parts[-1][0]], "usage": USAGE}

    def events(self, parts: list[Part]) -> list[bytes]:
        events = [event("messageStart", role="assistant")]
        for index, part in enumerate(parts):
            kind = part[0]
            if kind == "call":
                events.append(event("contentBlockStart", contentBlockIndex=index, start={"toolUse": _use()}))
            deltas = [_delta(piece) for piece in pieces(part)]
            if kind == "reasoning":
                deltas.append({"reasoningContent": {"signature": SIGNATURE}})
            events += [event("contentBlockDelta", contentBlockIndex=index, delta=delta) for delta in deltas]
            events.append(event("contentBlockStop", contentBlockIndex=index))
        events.append(event("messageStop", stopReason=STOPS[parts[-1][0]]))
        return [*events, event("metadata", usage=USAGE, metrics={"latencyMs": 1})]

    def error(self) -> tuple[dict[str, Any], dict[str, str]]:
        return {"message": "scripted"}, {"x-amzn-errortype": "ThrottlingException:"}


def _use() -> dict[str, str]:
    return {"toolUseId": "tool_1", "name": "calculator"}


def _delta(piece: Part) -> dict[str, Any]:
    kind, text = piece
    if kind == "call":
        return {"toolUse": {"input": text}}
    return {"reasoningContent": {"text": text}} if kind == "reasoning" else {"text": text}
