"""POST /v1/messages and /v1/messages/count_tokens, on top of chat."""

from __future__ import annotations

from typing import Any

from gateway.answer import Generated
from gateway.anthropic.request import check_version, read_count_request, read_messages_request
from gateway.anthropic.shape import MessageShape
from gateway.auth import KeyRing, Principal
from gateway.errors import NotFound
from gateway.openai.endpoint import Translation
from gateway.openai.shape import encode
from gateway.pipeline.models import ModelTable
from gateway.providers.engine.tool_calling import check_offerable
from gateway.requests.parse import decode_body, typed
from gateway.requests.tools import read_definitions
from gateway.requests.types import ChatRequest
from gateway.web.http_call import HttpCall, header


class MessagesTranslation(Translation):
    """One call of /v1/messages."""

    def __init__(self, call: HttpCall) -> None:
        """Raises InvalidRequest for an unknown `anthropic-version`."""
        check_version(header(call.scope, b"anthropic-version").decode("latin-1"))
        self._shows_thinking = False

    async def to_chat(self, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
        """See Translation."""
        chat, self._shows_thinking = read_messages_request(body)
        return chat

    def shape(self, model: str, answer: Generated) -> MessageShape:
        """See Translation."""
        shows_thinking = self._shows_thinking and answer.shows_reasoning
        return MessageShape(model, answer.usage, shows_thinking=shows_thinking)


class CountTokensEndpoint:
    """Counts the tokens of a prompt with the engine's own tokenizer and chat template."""

    def __init__(self, keys: KeyRing, models: ModelTable, max_body_bytes: int) -> None:
        self._keys = keys
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def count(self, call: HttpCall) -> None:
        """A body as of /v1/messages → `input_tokens`. Raises ApiError."""
        self._keys.identify(call.authorization)
        check_version(header(call.scope, b"anthropic-version").decode("latin-1"))
        body = decode_body(await call.read_json_bytes(self._max_body_bytes))
        request = typed(read_count_request(body), ChatRequest)
        engine = self._models.resolve(request.model).engine
        if engine is None:
            raise NotFound(f"The model {request.model[:128]!r} has no tokenizer here.", param="model")
        if request.tools is not None:
            check_offerable(engine.service.tokenizer.tool_use)
        tokens = await engine.service.prompts.encode_messages(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            max_tokens=engine.model.hello().max_model_tokens,
            tools=None if request.tools is None else read_definitions(request.tools),
            variables=engine.reasoning(request.reasoning_effort, None).variables,
        )
        await call.respond(encode({"input_tokens": len(tokens)}))
