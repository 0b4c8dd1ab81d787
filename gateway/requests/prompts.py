"""The four shapes of `prompt` and `input`: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from typing import cast

from gateway.errors import InvalidRequest

Prompt = str | list[int]

MAX_PROMPTS = 2048
"""Texts, or lists of token ids, in one request; a single list of token ids may be as long as the context."""


def parse_prompts(value: str | list[str | int | list[int]], param: str) -> list[Prompt]:
    """One entry per prompt: its text or its token ids. Raises InvalidRequest: mixed kinds, too many."""
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
