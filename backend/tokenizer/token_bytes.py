"""The bytes of each token, and the decoding rules for the start of a text.

Two families: byte-level BPE (Llama 3, Qwen: every character of a token is one byte) and SentencePiece style
(Llama 2, Mistral: U+2581 is a space, <0x41> a byte, and the first space of a text is added by the encoder).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from backend.errors import CheckpointError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class DecodeRules:
    """The `decoder` of tokenizer.json, reduced to what the two families need."""

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()  # applied to every token, in this order
    byte_fallback: bool = False  # <0x41> is the byte 0x41
    strip_leading: int = 0  # most spaces to strip from the start of a text
    drop_in_first: str = ""  # character to remove from the first token of a text

    def bytes_of(self, token: str) -> bytes:
        """Return the bytes of a token inside a text."""
        if self.byte_level:
            try:
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            except KeyError:  # an added token outside of the byte alphabet
                return token.encode()
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()

    def first_bytes_of(self, token: str) -> bytes:
        """Return the bytes of the first token of a text, before `strip_leading`."""
        return self.bytes_of(token.replace(self.drop_in_first, "") if self.drop_in_first else token)


class TokenBytes(dict[int, bytes]):
    """Token id → bytes, computed on first use; b"" for unknown ids and for `hidden` ones (special tokens)."""

    def __init__(
        self, token_of: Callable[[int], str | None], rules: DecodeRules, hidden: frozenset[int]
    ) -> None:
        super().__init__(dict.fromkeys(hidden, b""))
        self.rules = rules
        self.token_of = token_of
        self.hidden = hidden

    def __missing__(self, token_id: int) -> bytes:
        token = self.token_of(token_id)
        if token is None:
            return b""  # not cached: clients may send any number
        value = self[token_id] = self.rules.bytes_of(token)
        return value


def read_rules(decoder: dict[str, Any] | None, source: str) -> DecodeRules:
    """Interpret the `decoder` of tokenizer.json; `source` is the file's path, for errors.

    Raises CheckpointError for decoders of other families (WordPiece …): the bytes of their tokens depend on
    the context.
    """
    steps = decoder.get("decoders", [decoder]) if decoder else []
    kinds = [str(step.get("type")) for step in steps]
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return DecodeRules(byte_level=True)
    fields: dict[str, Any] = {}
    replacements: list[tuple[str, str]] = []
    for i, (kind, step) in enumerate(zip(kinds, steps, strict=True)):
        if kind == "Replace" and len(pattern := step["pattern"].get("String", "")) == 1:
            replacements.append((pattern, step["content"]))
        elif kind == "Metaspace":
            replacements.append((step["replacement"], " "))
            fields["drop_in_first"] = "" if step.get("prepend_scheme") == "never" else step["replacement"]
        elif kind == "ByteFallback":
            fields["byte_fallback"] = True
        elif kind == "Strip" and "Fuse" in kinds[:i] and step["content"] == " " and not step["stop"]:
            fields["strip_leading"] = step["start"]
        elif kind != "Fuse":
            raise CheckpointError(_unsupported(kind, source))
    if not steps:
        raise CheckpointError(_unsupported("none", source))
    return DecodeRules(replacements=tuple(replacements), **fields)


def special_ids(backend: Backend) -> frozenset[int]:
    """Return the ids of special tokens, which have no text."""
    return frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)


def _unsupported(kind: str, source: str) -> str:
    return (
        f"The decoder {kind!r} in {source!r} is not supported: the engine serves byte-level BPE and "
        "SentencePiece-style (metaspace, byte fallback) tokenizers."
    )


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's byte alphabet: printable bytes map to themselves, the others to U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
