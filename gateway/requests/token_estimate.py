"""Token counts where no tokenizer of the model is at hand: a mean number of characters each."""

from __future__ import annotations

import msgspec

from gateway.requests.types import ChatRequest, ModelRequest

CHARACTERS_PER_TOKEN = 4
"""A usual mean for English; the exact count needs a model's tokenizer."""


def estimate_tokens(num_characters: int) -> int:
    """Tokens of a text of this length."""
    return -(-num_characters // CHARACTERS_PER_TOKEN)


def estimate_prompt(request: ModelRequest) -> int:
    """Prompt tokens of a request's texts, or as many as it has token ids."""
    if isinstance(request, ChatRequest):
        return estimate_tokens(sum(_num_characters(message.get("content")) for message in request.messages))
    return _num_prompt_tokens(request.inputs)


def estimate_input(request: ModelRequest) -> int:
    """All that a model reads of a request: its prompt, its tools, and earlier calls of them; at least 1."""
    found = estimate_prompt(request)
    if isinstance(request, ChatRequest):
        calls = [message["tool_calls"] for message in request.messages if message.get("tool_calls")]
        for read in (*calls, request.tools, request.functions):
            if read:
                found += estimate_tokens(len(msgspec.json.encode(read).decode()))
    return max(1, found)


def _num_characters(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return sum(len(text) for text in texts if isinstance(text, str))


def _num_prompt_tokens(prompt: object) -> int:
    if isinstance(prompt, str):
        return estimate_tokens(len(prompt))
    if isinstance(prompt, list):
        return sum(1 if isinstance(each, int) else _num_prompt_tokens(each) for each in prompt)
    return 0
