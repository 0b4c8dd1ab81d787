"""POST /tokenize and /detokenize, in vLLM's shapes, with the engine's own tokenizer."""

from __future__ import annotations

from gateway.auth import KeyRing
from gateway.errors import InvalidRequest, NotFound
from gateway.exchange.model_table import ModelTable
from gateway.exchange.shape import encode
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.tool_calling import check_offerable
from gateway.requests.parse import decode_body, typed
from gateway.requests.tools import read_definitions
from gateway.requests.types import DetokenizeRequest, TokenizeRequest
from gateway.web.http_call import HttpCall


class TokenizeEndpoint:
    """Text or messages to token ids, and back."""

    def __init__(self, keys: KeyRing, models: ModelTable, max_body_bytes: int) -> None:
        self._keys = keys
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def tokenize(self, call: HttpCall) -> None:
        """`prompt` or `messages` → tokens, count, max_model_len."""
        self._keys.identify(call.authorization)
        body = decode_body(await call.read_json_bytes(self._max_body_bytes))
        request = typed(body, TokenizeRequest)
        engine = self._engine(request.model)
        max_tokens = engine.model.hello().max_model_tokens
        tokens = await _tokens(engine, request, max_tokens)
        answer: dict[str, object] = {
            "count": len(tokens),
            "max_model_len": max_tokens,
            "tokens": tokens,
            "token_strs": None,
        }
        if request.return_token_strs:
            answer["token_strs"] = [engine.service.tokenizer.token_text(token) for token in tokens]
        await call.respond(encode(answer))

    async def detokenize(self, call: HttpCall) -> None:
        """`tokens` → prompt."""
        self._keys.identify(call.authorization)
        body = decode_body(await call.read_json_bytes(self._max_body_bytes))
        request = typed(body, DetokenizeRequest)
        engine = self._engine(request.model)
        max_tokens = engine.model.hello().max_model_tokens
        if len(request.tokens) > max_tokens:
            raise InvalidRequest(
                f"This model's maximum context length is {max_tokens} tokens. However, 'tokens' holds "
                f"{len(request.tokens)} ids. Send fewer.",
                param="tokens",
                code="context_length_exceeded",
            )
        prompt = await engine.service.prompts.decode(request.tokens)
        await call.respond(encode({"prompt": prompt}))

    def _engine(self, name: str | None) -> EngineProvider:
        """The engine of the model `name`, or of the only one. Raises NotFound."""
        model = self._models.only_engine() if name is None else self._models.resolve(name)
        if model is None or model.engine is None:
            what = (
                "Name a 'model' of our own engine"
                if name is None
                else f"The model {name!r} has no tokenizer here"
            )
            raise NotFound(f"{what}; GET /v1/models lists those with a 'max_model_len'.", param="model")
        return model.engine


async def _tokens(engine: EngineProvider, request: TokenizeRequest, max_tokens: int) -> list[int]:
    """Raises InvalidRequest, also for a text that is clearly longer than the context."""
    if request.prompt is not None and request.messages is None:
        if request.tools is not None:
            raise InvalidRequest("'tools' go with 'messages', not with a 'prompt'.", param="tools")
        add_special_tokens = request.add_special_tokens is not False
        (tokens,) = await engine.service.prompts.encode_prompts(
            [request.prompt], add_special_tokens=add_special_tokens, max_tokens=max_tokens
        )
        return tokens
    if request.messages is None or request.prompt is not None:
        raise InvalidRequest("Give either 'prompt' or 'messages'.", param="prompt")
    if request.add_special_tokens:
        raise InvalidRequest(
            "'add_special_tokens' is for a 'prompt': with 'messages' the chat template writes them.",
            param="add_special_tokens",
        )
    if request.tools is not None:
        check_offerable(engine.service.tokenizer.tool_use)
    return await engine.service.prompts.encode_messages(
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        max_tokens=max_tokens,
        tools=None if request.tools is None else read_definitions(request.tools),
        variables=engine.reasoning(None, request.chat_template_kwargs).variables,
    )
