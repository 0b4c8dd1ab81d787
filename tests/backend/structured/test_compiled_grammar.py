"""What compiled grammars keep in memory, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from backend.structured.compiled_grammar import GROWTH_BYTES_PER_S, CompiledGrammar
from tests.backend.structured.letters import grammar

CHILD = """
import json, random, sys
import numpy as np
from backend.structured.compiled_grammar import CompiledGrammar, build, compilable
from backend.structured.grammar import Grammar
from backend.structured.heap import allocated_bytes
from backend.structured.llguidance_source import llguidance_source
from backend.structured.vocabulary import Vocabulary
from backend.types import GrammarSpec
from tests.backend.structured.pico import PICO

vocabulary = Vocabulary.from_checkpoint(PICO, 1536, [2])
row = np.zeros(vocabulary.num_mask_words, dtype=np.int32)
draw = random.Random(1)
found = []
for kind, text in json.loads(sys.argv[1]):
    source = llguidance_source(GrammarSpec(kind=kind, text=text), vocabulary)
    source, num_bytes = compilable(source, vocabulary)
    compiled = None
    before = allocated_bytes()
    compiled = CompiledGrammar(build(source, vocabulary), None, num_bytes)
    built = allocated_bytes()
    for _ in range(4):
        grammar = Grammar(compiled)
        for _ in range(500):
            grammar.fill_mask(row)
            if grammar.error or grammar.is_over:
                break
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            grammar.advance(int(draw.choice(allowed)))
    del grammar
    found.append([num_bytes, built - before, compiled.growth_bytes, allocated_bytes() - built])
print(json.dumps(found))
"""

GROWING = [
    ("regex", "a{9999}"),
    ("regex", "(.*a.{300})"),
    ("regex", "(w.{0,900}|[a-z]+x.{0,700}|.*q.{0,500})*"),
    ("regex", "(a|b|ab|ba|aba){30000}"),
    ("json_schema", '{"type":"object"}'),
    ("json_schema", '{"properties":{"a":{"type":"string","maxLength":100000}},"required":["a"]}'),
]


def test_size_is_measured_and_growth_is_not_underestimated() -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(GROWING)], capture_output=True, text=True, check=True
    )
    sizes = json.loads(child.stdout)
    for (_, text), (measured, size, estimate, growth) in zip(GROWING, sizes, strict=True):
        assert abs(measured - size) < 200_000 + size / 4, text
        assert growth < estimate + 200_000, text
    assert sizes[0][1] > 4_000_000, "one of them is large"
    assert max(growth for _, _, _, growth in sizes) > 10_000_000, "and one grows"


def test_a_rebuilt_matcher_starts_small() -> None:
    found = grammar("[ab]+")
    compiled = CompiledGrammar(found.matcher, lambda: grammar("[ab]+").matcher)
    compiled.used_s = 0.1
    assert compiled.growth_bytes == int(0.1 * GROWTH_BYTES_PER_S)
    compiled.replacement_for(found.matcher)
    assert compiled.growth_bytes == 0
