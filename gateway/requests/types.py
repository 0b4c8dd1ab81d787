"""Every request field of OpenAI's reference for our endpoints, plus the extensions of vLLM and SGLang.

Types and documented ranges are checked for every model; `field_support` refuses what our engine does not do.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

MAX_CHOICES = 128
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
Messages = Annotated[list[dict[str, Any]], Meta(min_length=1)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
TextsOrTokens = (
    str
    | Annotated[
        list[str | TokenId | TokenIds],  # all of one type; checked by `prompts.parse_prompts`
        Meta(min_length=1),
    ]
)


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries in addition to the deltas."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What all requests to a model have in common."""

    INPUT_FIELD: ClassVar[str] = ""
    """The field with texts or token ids; "": it has none."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]

    @property
    def inputs(self) -> TextsOrTokens:
        """What the model reads beside messages."""
        found: TextsOrTokens = getattr(self, self.INPUT_FIELD, "")
        return found

    @property
    def is_stream(self) -> bool:
        """True when the answer is streamed."""
        return False

    @property
    def num_logprobs(self) -> int | None:
        """Top log-probabilities per token; None: no log-probabilities."""
        return None


class GenerationRequest(ModelRequest, frozen=True, kw_only=True):
    """What chat and completions have in common."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Fraction | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    seed: Int64 | None = None
    max_tokens: Count | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]] | None = None
    user: str | None = None
    # Extensions, named as in vLLM and SGLang.
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # 0 and -1: off
    min_p: Fraction | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.001, le=1000.0)] | None = None  # the engine's own bounds
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    # Parsed by `structured_output`.
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    speculative: dict[str, Any] | None = None  # parsed by `speculation`

    @property
    def is_stream(self) -> bool:
        """True when the answer is streamed."""
        return bool(self.stream)

    @property
    def stops(self) -> list[str]:
        """Stop strings, at most MAX_STOPS."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def num_choices(self) -> int:
        """Answers per prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """True when the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_obfuscation(self) -> bool:
        """True when chunks are padded to hide the length of their text."""
        return self.stream_options is not None and bool(self.stream_options.include_obfuscation)


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # completions allow 0
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    store: bool | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    modalities: list[str] | None = None
    verbosity: str | None = None
    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None  # read by `reasoning`
    prediction: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    # Extensions.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate per choice; None: as many as the context has room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Top log-probabilities per token; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/completions."""

    INPUT_FIELD: ClassVar[str] = "prompt"

    prompt: TextsOrTokens
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None

    @property
    def token_limit(self) -> int:
        """Most tokens to generate per choice; OpenAI's default is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Top log-probabilities per token; None: no log-probabilities."""
        return self.logprobs


class EmbeddingRequest(ModelRequest, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    INPUT_FIELD: ClassVar[str] = "input"

    input: TextsOrTokens
    encoding_format: str | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    user: str | None = None


class ModerationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/moderations. `model` is accepted and ignored: there is one set of classifiers."""

    input: str | list[Any]
    model: str | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize, in vLLM's shape: a prompt or messages."""

    model: str | None = None  # None: the only model with a tokenizer
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[Any] | None = None  # with messages
    add_special_tokens: bool | None = None  # None: true for a prompt, false for messages
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize, in vLLM's shape."""

    model: str | None = None
    tokens: list[TokenId]
