"""Grammar libraries for structured output: llguidance against xgrammar, compile and mask times.

Random walks through 30 schemas, measured in CPU time of the thread, so that other load on the machine does
not count. xgrammar is not a dependency: `pip install xgrammar` to compare.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher

from backend.kernels.sampling.changes import apply_changes
from backend.sampling.sampler import Sampler, SamplingBatch
from backend.structured.compiled_grammar import CompiledGrammar
from backend.structured.grammar import Grammar
from backend.structured.mask import grammar_changes
from backend.structured.parallel import fill_masks
from backend.structured.vocabulary import Vocabulary
from backend.tokenizer import Tokenizer
from tests.backend.structured.schemas import Schema, corpus, huge_enum
from tests.bench import report

PICO = Path("backend/pico/weights/pico-small")
NUM_SCHEMAS = 30
NUM_ROWS = 32
MAX_STEPS = 80
LARGE_VOCABULARY = 150_000


class Walk(Protocol):
    """The state of one grammar."""

    def mask(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The token mask as bits, least significant first."""
        ...

    def advance(self, token_id: int) -> bool:
        """False when the grammar is over."""
        ...


class Guidance:
    """llguidance."""

    def __init__(self, tokens: list[bytes], special: list[int], eos: int) -> None:
        self._words = -(-len(tokens) // 32)
        self._tokenizer = Vocabulary(tokens, special, [eos]).automata

    def compile(self, schema: Schema) -> Walk:
        matcher = LLMatcher(
            self._tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0
        )
        assert not matcher.is_error(), matcher.get_error()
        return _GuidanceWalk(matcher, self._words)

    def start(self, schema: Schema) -> Grammar:
        """The grammar that the engine uses."""
        text = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        return Grammar(CompiledGrammar(LLMatcher(self._tokenizer, text, log_level=0)))


class _GuidanceWalk:
    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher, self._bits = matcher, np.zeros(words, dtype=np.int32)

    def mask(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        return self._bits.view(np.uint8)

    def advance(self, token_id: int) -> bool:
        return self._matcher.consume_token(token_id) and not self._matcher.is_stopped()


class XGrammar:
    """xgrammar."""

    def __init__(self, tokens: list[bytes], special: list[int], eos: int) -> None:
        import xgrammar

        self._library = xgrammar
        info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[eos]
        )
        self._size = len(tokens)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: Schema) -> Walk:
        compiled = self._compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        return _XGrammarWalk(self._library, compiled, self._size)


class _XGrammarWalk:
    def __init__(self, library: Any, compiled: Any, size: int) -> None:  # noqa: ANN401 - untyped library
        self._matcher = library.GrammarMatcher(compiled)
        self._bits = library.allocate_token_bitmask(1, size)

    def mask(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        self._matcher.fill_next_token_bitmask(self._bits)
        bits: np.ndarray[Any, np.dtype[np.uint8]] = self._bits[0].numpy().view(np.uint8)
        return bits

    def advance(self, token_id: int) -> bool:
        return self._matcher.accept_token(token_id) and not self._matcher.is_terminated()


def small_vocabulary() -> tuple[list[bytes], list[int], int]:
    """pico's vocabulary: tokens, special ids, EOS."""
    tokenizer = Tokenizer.from_checkpoint(PICO)
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    return tokens, list(range(8)), min(tokenizer.eos_token_ids)


def large_vocabulary() -> tuple[list[bytes], list[int], int]:
    """A synthetic BPE vocabulary: bytes, then words with spaces, capitals, punctuation and UTF-8."""
    rng = random.Random(0)
    syllables = [a + b for a in "bcdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "é", "ü")]
    signs = ['"', '":', ' "', '",', '{"', "}", "},", "]", "\n", "\n  ", "(", ");", "=", "->", "//", "0", "12"]
    found = {bytes([i]): None for i in range(256)}
    while len(found) < LARGE_VOCABULARY - 1:
        word = "".join(rng.choices(syllables, k=rng.randint(1, 4)))
        word = rng.choice(("", " ", "", " ", rng.choice(signs))) + rng.choice((word, word.title()))
        found[(rng.choice(signs) + rng.choice(signs) if rng.random() < 0.05 else word).encode()] = None
    return [*found, b"<|end|>"], [len(found)], len(found)


def measure(library: Any, schemas: list[Schema], seed: int) -> dict[str, float]:  # noqa: ANN401 - one of the two libraries
    """Milliseconds to compile, microseconds per mask, over random walks."""
    compiles_ms: list[float] = []
    masks_us: list[float] = []
    for schema in schemas:
        rng = random.Random(seed)
        spent_s, walk = _timed(lambda schema=schema: library.compile(schema))  # type: ignore[misc]
        compiles_ms.append(1e3 * spent_s)
        for _ in range(MAX_STEPS):
            spent_s, bits = _timed(walk.mask)
            masks_us.append(1e6 * spent_s)
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            if not len(allowed) or not walk.advance(int(rng.choice(allowed))):
                break
    return {
        "compile_p50_ms": float(np.percentile(compiles_ms, 50)),
        "compile_max_ms": max(compiles_ms),
        "masks": len(masks_us),
        "mask_p50_us": float(np.percentile(masks_us, 50)),
        "mask_p99_us": float(np.percentile(masks_us, 99)),
        "mask_max_us": max(masks_us),
    }


def measure_rows(library: Guidance, num_tokens: int) -> dict[str, float]:
    """Median milliseconds of a step with 32 grammars: masks, with two threads, with logits, and the draw."""
    rng = random.Random(1)
    schemas = corpus(NUM_ROWS)
    grammars = [library.start(schema) for schema in schemas]
    logits, sampler = torch.randn(NUM_ROWS, num_tokens), Sampler(num_tokens, torch.device("cpu"))
    spent: dict[str, list[float]] = {}
    for _ in range(MAX_STEPS):
        masks = np.zeros((NUM_ROWS, -(-num_tokens // 32)), dtype=np.int32)
        for name, threads in (("fill", None), ("fill_2_threads", LLExecutor(2))):
            started_s = time.perf_counter()
            fill_masks(list(enumerate(grammars)), masks, threads)
            spent.setdefault(f"{name}_ms", []).append(1e3 * (time.perf_counter() - started_s))
        edited = logits.clone()
        started_s = time.perf_counter()
        own = [(row, grammar, []) for row, grammar in enumerate(grammars)]
        apply_changes(edited, grammar_changes(num_tokens, own))
        masked_s = time.perf_counter()
        sampler.sample(edited, _drawn(NUM_ROWS))
        spent.setdefault("fill_and_apply_ms", []).append(1e3 * (masked_s - started_s))
        spent.setdefault("draw_ms", []).append(1e3 * (time.perf_counter() - masked_s))
        for row, bits in enumerate(np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")):
            grammars[row].advance(int(rng.choice(np.flatnonzero(bits))))
            if grammars[row].is_over:
                grammars[row] = library.start(schemas[row])
    return {name: float(np.median(values)) for name, values in spent.items()}


def _drawn(num_rows: int) -> SamplingBatch:
    return SamplingBatch(
        seeds=np.arange(num_rows, dtype=np.uint64),
        positions=np.zeros(num_rows, dtype=np.int64),
        temperature=np.ones(num_rows, dtype=np.float32),
        top_k=np.zeros(num_rows, dtype=np.int64),
        top_p=np.ones(num_rows, dtype=np.float32),
        min_p=np.zeros(num_rows, dtype=np.float32),
    )


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started_s = time.thread_time()
    value = work()
    return time.thread_time() - started_s, value


def run(arguments: argparse.Namespace) -> None:
    """Measure both libraries with both vocabularies, and one hostile schema."""
    rows: list[report.Row] = []
    together: list[report.Row] = []
    for name, vocabulary in (("pico", small_vocabulary()), ("large", large_vocabulary())):
        for kind in (Guidance, XGrammar):
            try:
                spent_s, library = _timed(lambda kind=kind, v=vocabulary: kind(*v))  # type: ignore[misc]
            except ImportError:
                continue
            row = {"library": kind.__name__, "tokens": len(vocabulary[0]), "load_ms": 1e3 * spent_s}
            rows.append(row | measure(library, corpus(NUM_SCHEMAS), seed=1))
            if isinstance(library, Guidance):
                together.append({"tokens": row["tokens"]} | measure_rows(library, len(vocabulary[0])))
            if name == "pico":
                spent_s, _ = _timed(lambda library=library: library.compile(huge_enum(1000)))  # type: ignore[misc]
                rows[-1]["enum_1000_ms"] = 1e3 * spent_s
    report.show("grammars · 30 schemas, random walks, processor time", rows, arguments.json)
    report.show(f"grammars · {NUM_ROWS} rows in a step, wall time", together, arguments.json)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""
