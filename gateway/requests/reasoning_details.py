"""Signed reasoning of earlier answers, which the upstream that wrote it wants to have back.

Messages of a chat carry it in `reasoning_details`, in OpenRouter's shape. A signature tells by its prefix
which API wrote it: none sends another's. Without a prefix it is Anthropic's, which Bedrock shares. With the
name of another API and a colon it is that API's, and signs what its model did, not the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.requests import refusals
from gateway.requests.parse import typed_at

OURS = "penstock:"
"""Begins the signatures of reasoning that no upstream has signed."""
REDACTED = "redacted:"
"""Begins the data of a block that Anthropic has encrypted as a whole."""
REDACTED_BEDROCK = "redacted:bedrock:"
"""The same, as Bedrock encodes it."""
_API = re.compile(r"(?!penstock:|redacted:)[a-z][a-z0-9_-]*:")


def signs_calls(signature: str) -> bool:
    """Whether a signature has to come back whatever is shown of the reasoning."""
    return _API.match(signature) is not None


class ReasoningBlock(NamedTuple):
    """A block of reasoning with its signature; of a redacted one there is only the data."""

    text: str
    signature: str

    @property
    def is_anthropic(self) -> bool:
        """True for blocks that go back to Anthropic's models."""
        return not self.signature.startswith((OURS, REDACTED_BEDROCK)) and not signs_calls(self.signature)


class _Detail(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    signature: str | None = None
    data: str | None = None


def details(blocks: Iterable[tuple[str, str]], first_index: int = 0) -> list[dict[str, Any]]:
    """`reasoning_details` of blocks of (text, signature); `first_index` numbers them in a stream."""
    return [_detail(index, *block) for index, block in enumerate(blocks, first_index)]


def _detail(index: int, text: str, signature: str) -> dict[str, Any]:
    if signature.startswith(REDACTED):
        data = signature.removeprefix(REDACTED)
        return {"type": "reasoning.encrypted", "data": data, "index": index}
    return {"type": "reasoning.text", "text": text, "signature": signature, "index": index}


def read_blocks(message: Mapping[str, Any], where: str) -> list[ReasoningBlock]:
    """The signed blocks of an assistant's message `where`. Raises InvalidRequest naming the field."""
    given = message.get("reasoning_details")
    if given is None:
        return []
    place = f"{where}.reasoning_details"
    if not isinstance(given, list):
        raise refusals.wrong_type(place, "an array")
    found = [typed_at(value, _Detail, f"{place}[{index}]") for index, value in enumerate(given)]
    blocks = [
        ReasoningBlock(each.text or "", each.signature or (REDACTED + each.data if each.data else ""))
        for each in found
    ]
    return [block for block in blocks if block.signature]
