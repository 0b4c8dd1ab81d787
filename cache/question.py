"""What identifies a request: its partition, its exact key, and the text that may be compared by meaning.

The partition is a hard wall, a SHA-256 over everything but the last user turn. Meaning is only ever compared
inside one partition: a namespace inside an embedding leaks (vLLM Semantic Router, issue 2134).
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cache.entry import NO_LABELS, Labels

WITHOUT_MEANING = frozenset(
    {
        "messages", "metadata", "model", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "speculative", "store", "stream",
        "stream_options", "user",
    }
)  # fmt: skip
"""Fields that change no answer. Every other field, an unknown one too, is part of the identity."""

_JSON = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class Question:
    """The identity of one request."""

    tenant: str  # who owns the entry and its quota; part of the partition when the scope is the tenant
    partition: bytes  # 32 bytes
    key: bytes  # 32 bytes: the partition and the normalised last user turn
    text: str  # the last user turn; "": not to be compared by meaning
    history: tuple[str, ...]  # earlier user turns, oldest first
    labels: Labels = NO_LABELS


def read_question(
    body: Mapping[str, Any], tenant: str, owner: Sequence[str], labels: Labels = NO_LABELS
) -> Question:
    """The identity of a chat request with the JSON `body`.

    `owner` is what the partition holds beside the request: tenant or scope, model, revision of its weights,
    wire format. A last message that is no plain user text (an image, a tool's result) leaves `text` empty.
    """
    messages: list[Any] = body["messages"]
    text = _user_text(messages[-1])
    compared = messages[:-1] if text else messages
    meaningful = {
        name: value for name, value in body.items() if name not in WITHOUT_MEANING and value is not None
    }
    partition = hashlib.sha256(_JSON.encode([list(owner), bool(text), compared, meaningful])).digest()
    key = hashlib.sha256(partition + normalised(text).encode("utf-8", "surrogatepass")).digest()
    history = tuple(found for each in messages[:-1] if (found := _user_text(each)))
    return Question(tenant, partition, key, text, history, labels)


def normalised(text: str) -> str:
    """The text without differences that no reader sees: Unicode NFC, line ends, outer white space.

    White space inside can have a meaning (code, tables, "how many spaces"): it is left alone.
    """
    return unicodedata.normalize("NFC", text).replace("\r\n", "\n").strip()


def _user_text(message: object) -> str:
    """The text of a user message that has nothing but a role and text; else ""."""
    if not isinstance(message, dict) or message.keys() != {"role", "content"} or message["role"] != "user":
        return ""
    content = message["content"]
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return ""
    part = content[0]
    text = part.get("text")
    return (
        text if part.keys() == {"type", "text"} and part["type"] == "text" and isinstance(text, str) else ""
    )
