"""The four forms of `prompt` and `input`: a string, strings, token ids, or lists of token ids."""

from __future__ import annotations

from typing import cast

from gateway.errors import InvalidRequest
from gateway.requests.types import CompletionRequest, GenerationRequest, ModelRequest

Prompt = str | list[int]

MAX_PROMPTS = 2048
"""Strings, or lists of token ids, in one request. A single list of token ids may fill the context."""


def parse_prompts(value: str | list[str | int | list[int]], param: str) -> list[Prompt]:
    """One entry per prompt: its text or its token ids. Raises InvalidRequest for mixed types or too many."""
    if isinstance(value, str):
        return [value]
    kinds = {type(item) for item in value}
    if kinds == {int}:
        return [cast("list[int]", value)]
    if kinds in ({str}, {list}):
        if len(value) > MAX_PROMPTS:
            raise InvalidRequest(
                f"'{param}' holds {len(value)} entries; one request takes at most {MAX_PROMPTS}.",
                param=param,
                code="invalid_value",
            )
        return cast("list[Prompt]", value)
    raise InvalidRequest(
        f"Invalid value for '{param}': an array holds either texts, token ids, or arrays of token ids.",
        param=param,
        code="invalid_type",
    )


def num_choices(request: ModelRequest) -> int:
    """The texts that are asked for, over all prompts; 1 where none are generated."""
    if not isinstance(request, GenerationRequest):
        return 1
    prompts = parse_prompts(request.prompt, "prompt") if isinstance(request, CompletionRequest) else [""]
    return request.num_choices * len(prompts)
