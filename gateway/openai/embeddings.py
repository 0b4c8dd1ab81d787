"""The shape of /v1/embeddings."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Sequence
from sys import byteorder

from gateway.openai.shape import encode


def embeddings_body(
    vectors: Sequence[Sequence[float]], model: str, prompt_tokens: int, *, as_base64: bool
) -> bytes:
    """OpenAI's answer; base64 holds float32 in little-endian order."""
    return encode(
        {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _base64(vector) if as_base64 else list(vector),
                }
                for index, vector in enumerate(vectors)
            ],
            "model": model,
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        }
    )


def _base64(vector: Sequence[float]) -> str:
    numbers = array("f", vector)
    if byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers).decode("ascii")
