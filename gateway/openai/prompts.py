"""The four shapes of `prompt` and `input`: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from typing import cast

from gateway.errors import InvalidRequest

Prompt = str | list[int]


def parse_prompts(value: str | list[str | int | list[int]], param: str) -> list[Prompt]:
    """One entry per prompt: its text or its token ids. Raises InvalidRequest when kinds are mixed."""
    if isinstance(value, str):
        return [value]
    kinds = {type(item) for item in value}
    if kinds == {int}:
        return [cast("list[int]", value)]
    if kinds in ({str}, {list}):
        return cast("list[Prompt]", value)
    raise InvalidRequest(
        f"Invalid value for '{param}': an array holds either texts, token ids, or arrays of token ids.",
        param=param,
        code="invalid_type",
    )
