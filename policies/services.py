"""The APIs that upstreams speak, and known services: where their API is, and how it differs. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

APIS: Mapping[str, str] = {
    "openai": "OpenAI's and what is compatible with it",
    "anthropic": "Anthropic's Messages",
    "gemini": "Google's generateContent",
    "bedrock": "AWS's Converse, signed with the credentials that AWS's tools find unless there is an "
    "`api_key_env`",
}
"""The built-in names of `api`, which packages add to, and what each is."""
KeyHeader = Literal["authorization", "api-key", "x-api-key", "x-goog-api-key"]
ServiceName = Literal[
    "anthropic", "bedrock", "deepseek", "fireworks", "gemini", "groq", "mistral", "ollama", "openai",
    "openrouter", "sglang", "together", "vllm", "xai",
]  # fmt: skip

_OLDER_LIMIT = {"max_completion_tokens": "max_tokens"}
_REASONING = ["reasoning", "reasoning_content", "reasoning_details"]


@dataclass(frozen=True, slots=True)
class Service:
    """The defaults of an upstream that names this service."""

    base_url: str
    api: str = "openai"
    api_key_header: KeyHeader = "authorization"
    rename_fields: Mapping[str, str] = field(default_factory=dict)
    drop_fields: list[str] = field(default_factory=list)
    drop_message_fields: list[str] = field(default_factory=list)
    custom_tools: bool = False
    needs_key: bool = True  # unless it is on this machine


SERVICES: Mapping[ServiceName, Service] = {
    "anthropic": Service("https://api.anthropic.com/v1", "anthropic", "x-api-key"),
    "bedrock": Service("https://bedrock-runtime.us-east-1.amazonaws.com", "bedrock", needs_key=False),
    "deepseek": Service("https://api.deepseek.com/v1", rename_fields=_OLDER_LIMIT),
    "fireworks": Service("https://api.fireworks.ai/inference/v1", rename_fields=_OLDER_LIMIT),
    "gemini": Service("https://generativelanguage.googleapis.com/v1beta", "gemini", "x-goog-api-key"),
    "groq": Service("https://api.groq.com/openai/v1", drop_message_fields=_REASONING),
    "mistral": Service(
        "https://api.mistral.ai/v1",
        rename_fields={**_OLDER_LIMIT, "seed": "random_seed"},
        drop_fields=["safety_identifier", "stream_options", "user"],  # its streams end with the usage
        drop_message_fields=_REASONING,
    ),
    "ollama": Service("http://127.0.0.1:11434/v1", rename_fields=_OLDER_LIMIT),
    "openai": Service("https://api.openai.com/v1", drop_message_fields=_REASONING, custom_tools=True),
    "openrouter": Service("https://openrouter.ai/api/v1", rename_fields=_OLDER_LIMIT),
    "sglang": Service("http://127.0.0.1:30000/v1"),
    "together": Service("https://api.together.ai/v1", rename_fields=_OLDER_LIMIT),
    "vllm": Service("http://127.0.0.1:8000/v1"),
    "xai": Service("https://api.x.ai/v1"),
}
