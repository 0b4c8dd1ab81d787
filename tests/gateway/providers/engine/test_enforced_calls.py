"""A model whose logits are random makes valid calls of the functions that a grammar asks for."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken

from backend.structured.compiled_grammar import parsed
from backend.structured.llguidance_source import llguidance_source
from backend.structured.vocabulary import Vocabulary
from backend.tokenizer import Tokenizer
from backend.tokenizer.thinking import HARMONY, THINK
from backend.types import GrammarSpec
from gateway.providers.engine.harmony_splitter import HarmonySplitter
from gateway.providers.engine.reasoning_splitter import ReasoningSplitter
from gateway.providers.engine.tool_calling import Tools
from gateway.providers.engine.tool_grammar import MAX_PREAMBLE_CHARS
from gateway.requests.structured_output import with_reasoning
from gateway.requests.tools import ToolChoice
from gateway.tool_calls.families import SYNTAXES
from gateway.tool_calls.mistral import MISTRAL_NAMED
from tests.backend.tokenizer.checkpoints import save_byte_level

MAX_TOKENS = 6_000
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "from": {"type": "string"},
        "size": {"enum": ["s", "m (wide)", "l, \"}')]"]},
        "limit": {"type": "integer", "minimum": -5, "maximum": 100},
        "ratio": {"type": "number"},
        "deep": {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "ref": {"$ref": "#/$defs/maybe"},
    },
    "required": ["from", "size", "limit", "deep"],
    "additionalProperties": False,
    "$defs": {"maybe": {"type": ["integer", "null"]}},
}
NO_TEXT = {**SCHEMA, "properties": {k: v for k, v in SCHEMA["properties"].items() if k != "from"}}
NO_TEXT["required"] = SCHEMA["required"][1:]
ALL = {**SYNTAXES, "mistral_named": MISTRAL_NAMED}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """For each syntax one whose tokens are special."""
    made = {}
    for name in ALL:
        tokens = dict.fromkeys((*ALL[name].tokens, *HARMONY.tokens, "<think>", "</think>"))
        added = [AddedToken(token, special=True) for token in tokens]
        made[name] = Tokenizer.from_checkpoint(save_byte_level(tmp_path_factory.mktemp(name), added=added))
    return made


def tools(name: str, *, is_plain: bool, **fields: Any) -> Tools:  # noqa: ANN401
    """Two functions; where a value ends at a tag of plain text, no chance ever ends it: no such value."""
    schema = NO_TEXT if is_plain else SCHEMA
    functions = [{"name": each, "parameters": schema} for each in ("find", "send-it")]
    definitions = [{"type": "function", "function": function} for function in functions]
    return Tools(ToolChoice(definitions, **fields), ALL[name])


def generate(tokenizer: Tokenizer, spec: GrammarSpec, seed: int) -> list[int]:
    """Draw tokens that the grammar allows until the end, which is taken where it can be."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher = LLMatcher(vocabulary.ll_tokenizer, parsed(llguidance_source(spec, vocabulary)))
    draw = np.random.default_rng(seed)
    ids: list[int] = []
    while len(ids) < MAX_TOKENS:
        assert not matcher.is_error(), matcher.get_error()
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        (choices,) = np.nonzero(allowed)
        if set(choices) & set(tokenizer.eos_token_ids):
            return ids
        ids.append(int(draw.choice(choices)))
        assert matcher.consume_token(ids[-1])
    raise AssertionError("the grammar does not end")


@pytest.mark.parametrize("has_reasoning", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_random_logits_make_a_valid_call(
    tokenizers: dict[str, Tokenizer], name: str, has_reasoning: bool
) -> None:
    form = ALL[name].form
    is_plain = not form.separator and bool(form.parameter[0])
    seed = int(has_reasoning)
    has_reasoning |= name == "harmony"  # its messages follow one of reasoning
    offered = tools(name, is_plain=is_plain, is_required=True, max_calls=1, strict=frozenset(["find"]))
    tokenizer = tokenizers[name]
    spec = offered.grammar(None, tokenizer.special_id)
    tags = HARMONY if name == "harmony" else THINK
    splitter = HarmonySplitter() if name == "harmony" else ReasoningSplitter(begins_inside=False)
    if has_reasoning:
        bare = THINK if name != "harmony" else type(HARMONY)(tags.opening, tags.closing, tags.tokens)
        spec = with_reasoning(spec, begins_inside=False, max_tokens=20, tags=bare)
    assert spec is not None
    text = tokenizer.decode(generate(tokenizer, spec, seed), skip_special_tokens=False)
    parts = [splitter.push(text), splitter.flush()]
    parser = offered.parser()
    pieces = [parser.push("".join(answer for _, answer in parts)), parser.flush()]
    calls = [call for piece in pieces for call in piece.calls]
    text = "".join(piece.text for piece in pieces)
    assert (text == "") or (form.preamble[0] != "" and len(text) <= MAX_PREAMBLE_CHARS)
    assert [call.name for call in calls][:1] in (["find"], ["send-it"])
    arguments = json.loads("".join(call.arguments for call in calls))
    jsonschema.validate(arguments, NO_TEXT if is_plain else SCHEMA)
