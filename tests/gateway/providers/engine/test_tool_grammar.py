"""Grammars of calls, run by the engine's grammar library over the embedded model's vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken

from backend.structured.compiled_grammar import build, parsed
from backend.structured.llguidance_source import llguidance_source
from backend.structured.vocabulary import Vocabulary
from backend.tokenizer import Tokenizer
from backend.types import GrammarSpec
from gateway.errors import InvalidRequest
from gateway.providers.engine.tool_calling import Tools
from gateway.providers.engine.tool_grammar import call_grammar
from gateway.requests.tools import ToolChoice, read_tools
from gateway.requests.types import ChatRequest
from gateway.tool_calls.families import SYNTAXES
from tests.backend.tokenizer.checkpoints import save_byte_level
from tests.gateway.tool_calls.writers import WRITERS

PICO = Path(__file__).parents[4] / "backend" / "pico" / "weights" / "pico-small"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/text"}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"text": {"type": "string"}},
}
CONTENT_SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
CONTENT = GrammarSpec(kind="json_schema", text=json.dumps(CONTENT_SCHEMA))
GOOD, BAD = {"a": 1, "b": "x)}"}, {"a": "x", "b": "y"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_checkpoint(PICO)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


def written(syntax: str, *calls: tuple[str, dict[str, Any]]) -> str:
    text = WRITERS[syntax](calls)
    if syntax == "harmony":
        return text.replace("<|channel|>", "<|start|>assistant<|channel|>").removesuffix("<|call|>")
    for mark in ("<|python_tag|>", "<|python_start|>", "<|python_end|>"):
        text = text.replace(mark, "")
    return text.replace("'", '"') if syntax in ("pythonic", "lfm2", "olmo3") else text


def said(syntax: str, text: str) -> str:
    """An answer without calls."""
    return SYNTAXES[syntax].form.text + text


def choice(**fields: Any) -> ToolChoice:  # noqa: ANN401
    functions = [{"name": name, "parameters": SCHEMA} for name in ("add", "look-up")]
    definitions = [{"type": "function", "function": function} for function in functions]
    return ToolChoice(definitions, frozenset(["add"]), **fields)


@pytest.mark.parametrize("has_reasoning", [False, True])
@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_the_grammar_allows_only_what_is_requested(
    tokenizer: Tokenizer, vocabulary: Vocabulary, syntax: str, is_special: bool, has_reasoning: bool
) -> None:
    def allowed(text: str, tools: ToolChoice, content: GrammarSpec | None = None) -> bool:
        token_id = tokenizer.special_id if is_special else lambda _: None
        grammar = call_grammar(SYNTAXES[syntax], tools, token_id, content)
        spec = GrammarSpec(kind="lark", text=grammar, thought="inside" if has_reasoning else "none")
        matcher = LLMatcher(vocabulary.ll_tokenizer, parsed(llguidance_source(spec, vocabulary)))
        assert not matcher.is_error(), matcher.get_error()
        ids = tokenizer.encode("So.\n</think>\n\n") if has_reasoning else []
        if is_special:
            ids += tokenizer.encode(text)
        else:  # the tags are plain text: not single tokens
            ids += [i for char in text for i in tokenizer.encode(char)]
        return (
            matcher.validate_tokens(ids) == len(ids)
            and matcher.consume_tokens(ids)
            and matcher.is_accepting()
        )

    one, two = written(syntax, ("add", GOOD)), written(syntax, ("look-up", GOOD), ("add", GOOD))
    wrong = [written(syntax, ("rm", GOOD)), written(syntax, ("add", BAD)), written(syntax, ("add", {}))]
    required = choice(is_required=True)
    five = said(syntax, "It is 5.")
    assert [allowed(text, required) for text in (one, two, *wrong, five)] == [True, True, *[False] * 4]
    single = choice(is_required=True, max_calls=1)
    assert [allowed(text, single) for text in (one, two)] == [True, False]
    free = [allowed(text, choice()) for text in (one, two, five)]
    assert free == [True, True, True]
    mixed = [allowed(text, choice(), CONTENT) for text in (one, said(syntax, '{"x": 5}'), five, *wrong)]
    assert mixed == [True, True, *[False] * 4]
    if syntax not in ("llama3_json", "harmony"):
        assert allowed(f"I look it up. {one}", choice())


@pytest.mark.parametrize(
    "what_no_grammar_enforces",
    [{"not": {"required": ["a"]}}, {"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}],
)
def test_strict_functions_refuse_what_others_allow(
    vocabulary: Vocabulary, what_no_grammar_enforces: dict[str, Any]
) -> None:
    function = {"name": "add", "parameters": SCHEMA | what_no_grammar_enforces}
    for strict in (frozenset(["add"]), frozenset[str]()):
        tools = ToolChoice([{"type": "function", "function": function}], strict, is_required=True)
        grammar = call_grammar(SYNTAXES["hermes"], tools, lambda _: None)
        text = llguidance_source(GrammarSpec(kind="lark", text=grammar), vocabulary)
        assert LLMatcher(vocabulary.ll_tokenizer, parsed(text)).is_error() == bool(strict)


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_strict_answer_is_equally_strict_with_tools(vocabulary: Vocabulary, is_exact: bool) -> None:
    schema = CONTENT_SCHEMA | {"properties": {"x": {"type": "array", "uniqueItems": True}}}
    content = GrammarSpec(kind="json_schema", text=json.dumps(schema), is_exact=is_exact)
    grammar = call_grammar(SYNTAXES["hermes"], choice(), lambda _: None, content)
    text = llguidance_source(GrammarSpec(kind="lark", text=grammar), vocabulary)
    matcher = LLMatcher(vocabulary.ll_tokenizer, parsed(text))
    assert matcher.is_error() == is_exact
    assert ("uniqueItems" in matcher.get_error()) == is_exact


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
ODD = SCHEMA | {"properties": {"a": UNIQUE, "b": {"type": "string"}}}


def offered(*schemas: dict[str, Any], **fields: Any) -> Tools:  # noqa: ANN401
    functions = [{"name": f"f{i}", "parameters": schema, "strict": True} for i, schema in enumerate(schemas)]
    body = {
        "model": "m",
        "messages": [{"role": "user"}],
        "tools": [{"type": "function", "function": each} for each in functions],
    }
    found = read_tools(msgspec.convert(body | fields, ChatRequest))
    assert found is not None
    return Tools(found, SYNTAXES["hermes"])


def refusal(tools: Tools, vocabulary: Vocabulary, spec: GrammarSpec) -> InvalidRequest:
    """The error for a grammar that the library refuses with this message."""
    with pytest.raises(ValueError, match="uniqueItems") as refused:
        build(parsed(llguidance_source(spec, vocabulary)), vocabulary)
    words = f"the grammar is refused: {refused.value}; simplify or correct it"
    return tools.explained(InvalidRequest(words, param=spec.param), spec)


@pytest.mark.parametrize("thought", ["none", "inside"])
@pytest.mark.parametrize("number", [0, 1, 7])
def test_the_invalid_function_is_named(
    vocabulary: Vocabulary, number: int, thought: Literal["none", "inside"]
) -> None:
    schemas = [ODD if i == number else SCHEMA for i in range(9)]
    named = {"type": "function", "function": {"name": f"f{number}"}}
    for fields in ({}, {"tool_choice": "required"}, {"tool_choice": named}):
        tools = offered(*schemas, **fields)
        spec = tools.grammar(None, lambda _: None)
        assert spec is not None
        error = refusal(tools, vocabulary, msgspec.structs.replace(spec, thought=thought))
        assert error.message == (
            f"Invalid schema for function 'f{number}': "
            "the keyword 'uniqueItems' is not supported; simplify or correct it."
        )
        assert error.param == f"tools[{number}].function.parameters"


def test_an_invalid_response_format_beside_tools_is_named(vocabulary: Vocabulary) -> None:
    asked = GrammarSpec(kind="json_schema", text=json.dumps(ODD), is_exact=True)
    tools = offered(SCHEMA)
    spec = tools.grammar(asked, lambda _: None)
    assert spec is not None
    error = refusal(tools, vocabulary, spec)
    assert error.message == (
        "the grammar is refused: the keyword 'uniqueItems' is not supported; simplify or correct it"
    )
    assert error.param == "response_format"


def test_other_errors_are_unchanged() -> None:
    tools = offered(SCHEMA)
    spec = GrammarSpec(kind="lark", text="start: calls")
    other = InvalidRequest("the grammar of this request became too complex: too many states", param="tools")
    assert tools.explained(other, spec) is other
    beyond = InvalidRequest("the grammar is refused: at 9(1): no; simplify or correct it", param="tools")
    found = tools.explained(beyond, spec)
    assert (found.message, found.param) == ("the grammar is refused: no; simplify or correct it", "tools")


@pytest.mark.parametrize("is_required", [False, True])
def test_a_text_for_the_user_may_precede_a_call_in_harmony(tmp_path: Path, is_required: bool) -> None:
    syntax = SYNTAXES["harmony"]
    added = [AddedToken(token, special=True) for token in syntax.tokens]
    tokenizer = Tokenizer.from_checkpoint(save_byte_level(tmp_path, added=added))
    vocabulary = Vocabulary.from_tokenizer(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    grammar = call_grammar(syntax, choice(is_required=is_required), tokenizer.special_id)
    source = parsed(llguidance_source(GrammarSpec(kind="lark", text=grammar), vocabulary))
    call, preamble = written("harmony", ("add", GOOD)), "I look it up.".join(syntax.form.preamble)
    accepted = []
    for text in (call, preamble + call, preamble, preamble * 2 + call):
        matcher = LLMatcher(vocabulary.ll_tokenizer, source)
        assert not matcher.is_error(), matcher.get_error()
        ids = tokenizer.encode(text)
        accepted.append(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())
    assert accepted == [True, True, False, False]


def test_calls_may_follow_reasoning_of_a_limited_length() -> None:
    tools = offered(SCHEMA)
    free = Tools(ToolChoice(tools.definitions), SYNTAXES["harmony"])
    assert free.grammar(None, lambda _: None) is None
    spec = free.grammar(None, lambda _: None, follows_budget=True)
    assert spec is not None and "to=functions.f0" in spec.text and "final" in spec.text


@pytest.mark.parametrize("syntax", ["lark", "regex"])
def test_the_input_of_a_custom_tool_matches_its_grammar(
    tokenizer: Tokenizer, vocabulary: Vocabulary, syntax: str
) -> None:
    definition = 'start: "a" /.+/ LF\n%import common.LF' if syntax == "lark" else "a.+\n"
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    body = {
        "model": "m",
        "messages": [{"role": "user"}],
        "tools": [{"type": "custom", "custom": {"name": "edit", "format": form}}],
    }
    found = read_tools(msgspec.convert(body, ChatRequest))
    assert found is not None and Tools(found, SYNTAXES["hermes"]).grammar(None, tokenizer.special_id)
    grammar = call_grammar(SYNTAXES["hermes"], found, tokenizer.special_id)
    source = parsed(llguidance_source(GrammarSpec(kind="lark", text=grammar), vocabulary))
    allowed = []
    for text in ('ab"\\é\n', "a\n", "b\n", 'ab"'):
        matcher = LLMatcher(vocabulary.ll_tokenizer, source)
        assert not matcher.is_error(), matcher.get_error()
        call = written("hermes", ("edit", {"input": "x"})).replace(
            '"x"', json.dumps(text, ensure_ascii=False)
        )
        ids = tokenizer.encode(call)
        allowed.append(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())
    assert allowed == [True, False, False, False]


def test_a_grammar_that_cannot_be_enforced_is_refused_by_its_place() -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a(?=b)"}}
    body = {
        "model": "m",
        "messages": [{"role": "user"}],
        "tools": [{"type": "custom", "custom": {"name": "edit", "format": form}}],
    }
    found = read_tools(msgspec.convert(body, ChatRequest))
    assert found is not None
    with pytest.raises(InvalidRequest, match="looks around") as refused:
        call_grammar(SYNTAXES["hermes"], found, lambda _: None)
    assert refused.value.param == "tools[0].custom.format.grammar.definition"


def customs(*definitions: str, **fields: Any) -> Tools:  # noqa: ANN401
    tools = [
        {
            "type": "custom",
            "custom": {
                "name": f"c{i}",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": each}},
            },
        }
        for i, each in enumerate(definitions)
    ]
    body = {"model": "m", "messages": [{"role": "user"}], "tools": tools}
    found = read_tools(msgspec.convert(body | fields, ChatRequest))
    assert found is not None
    return Tools(found, SYNTAXES["hermes"])


GOOD_LARK = 'start: "a"\nother: "b"\n'


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ("start: nope", "unknown name (line 1, rule 'start')"),
        ('// comment\nstart: a\n\na: "x"\n  | nope', "unknown name (line 4, rule 'a')"),
        ('start: WORD\nWORD: "x" NOPE', "unknown name (line 2, rule 'WORD')"),
        ('start: "a"~3..1', "the end of a range is before its start (line 1, rule 'start')"),
    ],
)
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}])
def test_the_rule_of_a_custom_tool_that_is_wrong_is_named(
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    definition: str,
    fault: str,
    number: int,
    fields: dict[str, Any],
) -> None:
    tools = customs(*[definition if i == number else GOOD_LARK for i in range(3)], **fields)
    spec = tools.grammar(None, tokenizer.special_id)
    assert spec is not None
    with pytest.raises(ValueError, match=r"at \d+") as refused:
        build(parsed(llguidance_source(spec, vocabulary)), vocabulary)
    words = f"the grammar is refused: {refused.value}; simplify or correct it"
    error = tools.explained(InvalidRequest(words, param=spec.param), spec)
    assert error.param == f"tools[{number}].custom.format.grammar.definition"
    assert error.message == (
        f"'{error.param}' of the tool 'c{number}' cannot be enforced: {fault}; simplify or correct it."
    )


def test_a_custom_tools_grammar_needs_a_start() -> None:
    with pytest.raises(InvalidRequest, match="of the tool 'c1' .* no rule 'start'") as refused:
        customs(GOOD_LARK, 'begin: "a"').grammar(None, lambda _: None)
    assert refused.value.param == "tools[1].custom.format.grammar.definition"


def test_an_error_without_a_place_names_the_grammars_that_it_may_be_about() -> None:
    words = "the grammar of this request became too complex: too many rules apply at once"
    error = InvalidRequest(words, param="tool_choice")
    spec = GrammarSpec(kind="lark", text="start: calls")
    place = "tools[0].custom.format.grammar.definition"
    one = customs(GOOD_LARK, tool_choice="required").explained(error, spec)
    assert (one.message, one.param) == (f"{words}. See '{place}' of the tool 'c0'.", place)
    two = customs(GOOD_LARK, GOOD_LARK, tool_choice="required").explained(error, spec)
    assert two.param == "tools" and "of the tool 'c0', 'tools[1]" in two.message
    content = InvalidRequest(words, param="response_format")
    assert customs(GOOD_LARK).explained(content, spec) is content
