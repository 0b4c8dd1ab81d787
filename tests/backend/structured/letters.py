"""A readable vocabulary: single bytes, two longer tokens, reasoning tags and EOS."""

from __future__ import annotations

from functools import partial

import numpy as np

from backend.structured.compiled_grammar import CompiledGrammar, build, parsed
from backend.structured.grammar import Grammar
from backend.structured.llguidance_source import llguidance_source
from backend.structured.vocabulary import Vocabulary
from backend.types import GrammarSpec

AB, NAME, OPEN, CLOSE, END = 256, 257, 258, 259, 260
TOKENS = [bytes([i]) for i in range(256)] + [b"ab", b'"name"', b"<think>", b"</think>", b"<end>", b""]

AMBIGUOUS = 'start: a\na: a a | a a a | "x" | "y"'
"""An ambiguous Lark grammar: the number of parses, and so the time per token, grows with the text."""


def letters(*, has_tags: bool = True) -> Vocabulary:
    """`has_tags`: whether the reasoning tags are special tokens."""
    return Vocabulary(TOKENS, [OPEN, CLOSE, END] if has_tags else [END], [END])


def grammar(text: str, vocabulary: Vocabulary | None = None, kind: str = "regex", **more: object) -> Grammar:
    spec = GrammarSpec(kind=kind, text=text, **more)  # type: ignore[arg-type]
    vocabulary = vocabulary or letters()
    rebuild = partial(build, parsed(llguidance_source(spec, vocabulary)), vocabulary)
    return Grammar(CompiledGrammar(rebuild(), rebuild, accepts_drafts=not spec.max_thought_tokens))


def allowed(found: Grammar) -> set[int]:
    row = np.zeros(-(-len(TOKENS) // 32), dtype=np.int32)
    found.fill_mask(row)
    return bits(row)


def bits(row: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> set[int]:
    unpacked = np.unpackbits(row.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(unpacked).tolist())


def ids(text: str) -> list[int]:
    """One token per byte."""
    return list(text.encode())
