"""Grammars of calls whose arguments are elements, run over the embedded model's vocabulary."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from backend.structured.compiled_grammar import parsed
from backend.structured.llguidance_source import llguidance_source
from backend.structured.vocabulary import Vocabulary
from backend.tokenizer import Tokenizer
from backend.types import GrammarSpec
from gateway.errors import InvalidRequest
from gateway.providers.engine.element_grammar import in_order
from gateway.providers.engine.tool_grammar import call_grammar
from gateway.requests.tools import ToolChoice
from gateway.tool_calls.families import SYNTAXES
from tests.gateway.tool_calls.writers import WRITERS

PICO = Path(__file__).parents[4] / "backend" / "pico" / "weights" / "pico-small"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_checkpoint(PICO)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


def written(name: str, values: dict[str, Any]) -> str:
    """A call as the grammar asks for it: values of keywords are JSON."""
    form = SYNTAXES[name].form
    if not form.separator:
        return WRITERS[name]([("add", values)])
    listed = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return f"{form.opening}add({', '.join(listed)}){form.closing}"


@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=4)))
def test_parameters_are_separated_whichever_are_left_out(needed: tuple[bool, ...]) -> None:
    for count in range(5):
        rules = in_order("r", list("abcd")[:count], needed[:count], ", ")
        source = "\n".join(["start: r", *rules, *(f'{name}: "{name}"' for name in "abcd"[:count])])
        found = re.compile(lark_pattern(source))
        for chosen in itertools.product([False, True], repeat=count):
            text = ", ".join(itertools.compress("abcd", chosen))
            is_allowed = all(has or not must for has, must in zip(chosen, needed, strict=False))
            assert bool(found.fullmatch(text)) == is_allowed, (rules, text)
        assert not found.fullmatch(", a") and not found.fullmatch("a,")


def lark_pattern(source: str) -> str:
    """A grammar without recursion as a regular expression."""
    rules = dict(line.split(": ", 1) for line in source.split("\n"))

    def pattern(body: str) -> str:
        tokens = re.findall(r'"[^"]*"|\w+|[()?|]', body)
        return "".join(
            json.loads(each) if each[0] == '"' else f"({pattern(rules[each])})" if each in rules else each
            for each in tokens
        )

    return pattern("start")


def test_values_between_tags_fit_their_schemas(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "kind": {"enum": ["a", "b c"]},
            "n": {"type": "integer", "minimum": 0},
            "o": {"$ref": "#/$defs/o"},
        },
        "required": ["s", "kind", "n"],
        "$defs": {"o": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
    }
    tools = ToolChoice(
        [{"type": "function", "function": {"name": "add", "parameters": schema}}], is_required=True
    )
    for name, syntax in SYNTAXES.items():
        if not syntax.form.parameter[0] or syntax.form.quote:
            continue
        source = parsed(
            llguidance_source(
                GrammarSpec(kind="lark", text=call_grammar(syntax, tools, tokenizer.special_id)), vocabulary
            )
        )

        def allows(**values: Any) -> bool:  # noqa: ANN401
            matcher = LLMatcher(vocabulary.ll_tokenizer, source)  # noqa: B023
            assert not matcher.is_error(), matcher.get_error()
            ids = tokenizer.encode(written(name, values))  # noqa: B023
            return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

        good = {"s": '[1]\n</b> "', "kind": "b c", "n": 5}
        assert allows(**good) and allows(**good, o={"x": True}), name
        assert allows(s="", kind="a", n=0), name
        for bad in ({"n": -1}, {"n": "five"}, {"kind": "c"}, {"o": {"x": 1}}, {"z": 1}):
            assert not allows(**{**good, **bad}), (name, bad)
        assert not allows(s="x", kind="a"), name


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ({"type": ["string", "integer"]}, "may be a string or of another type"),
        ({"type": "string", "pattern": "a+"}, "has 'pattern'"),
        ({}, "may be a string or of another type"),
    ],
)
def test_a_strict_parameter_that_plain_text_cannot_enforce_is_refused_by_name(
    kind: dict[str, Any], what: str
) -> None:
    schema = {"type": "object", "properties": {"k": kind}, "required": ["k"], "additionalProperties": False}
    definitions = [{"type": "function", "function": {"name": "f0", "parameters": schema}}]
    places = {"f0": "tools[0].function.parameters"}
    strict = ToolChoice(definitions, frozenset(["f0"]), places=places)
    with pytest.raises(InvalidRequest, match=f"function 'f0': the parameter 'k' {what}") as refused:
        call_grammar(SYNTAXES["qwen3_coder"], strict, lambda _: None)
    assert refused.value.param == "tools[0].function.parameters"
    assert call_grammar(SYNTAXES["qwen3_coder"], ToolChoice(definitions), lambda _: None)
