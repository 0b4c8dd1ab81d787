"""Parameters as elements: what ends a value, what models forget, and bugs that other servers had."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.tool_calls.families import SYNTAXES
from gateway.tool_calls.parser import ToolCallParser
from tests.gateway.tool_calls.pieces import Calls, parse

SCHEMAS = {
    "add": {
        "type": "object",
        "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}},
    }
}


def qwen(text: str, **options: Any) -> tuple[str, Calls]:  # noqa: ANN401
    whole = parse(SYNTAXES["qwen3_coder"], [text], schemas=SCHEMAS, **options)
    assert parse(SYNTAXES["qwen3_coder"], list(text), schemas=SCHEMAS, **options) == whole
    return whole


def call(inner: str) -> str:
    return f"<tool_call>\n<function=add>\n{inner}\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<parameter=s>\n</parameter>\n</parameter>", {"s": "</parameter>"}),
        ("<parameter=s>\na</parameter> b</parameter>\n</parameter>", {"s": "a</parameter> b</parameter>"}),
        ("<parameter=s>\n\n a \n\n</parameter>", {"s": "\n a \n"}),
        ("<parameter=s>a</parameter>", {"s": "a"}),
        ("<parameter=s></parameter>", {"s": ""}),
        ("<parameter=s>\n</parameter>", {"s": ""}),
        ("<parameter=s>\n<parameter=n>\n5\n</parameter>", {"s": "<parameter=n>\n5"}),
        ("<parameter= s >\n<b>&amp;\r\n\n</parameter>", {"s": "<b>&amp;\r\n"}),
        ("<parameter=n>\n5\n</parameter><parameter=s>\n5\n</parameter>", {"n": 5, "s": "5"}),
        ("", {}),
    ],
)
def test_a_value_ends_where_another_tag_follows(inner: str, expected: object) -> None:
    ((name, found),) = qwen(call(inner))[1]
    assert (name, json.loads(found)) == ("add", expected)


@pytest.mark.parametrize(
    "text",
    [
        "<function=add>\n<parameter=n>\n5\n</parameter>\n</function>",  # the first tag is forgotten
        "<function=add>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=n>\n5\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=n>\n5\n</parameter>\n</function>",
        "<tool_call>\n<function=add>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool",
        "<tool_call><function=add><parameter=n>5</parameter></function></tool_call>",
    ],
)
def test_forgotten_tags_are_no_loss(text: str) -> None:
    assert qwen(text) == ("", [("add", '{"n": 5}')])


def test_calls_without_the_tag_between_them() -> None:
    one = "<function=add>\n</function>\n"
    for between in ("", "<tool_call>\n", "</tool_call>", "</tool_call>\n<tool_call>"):
        assert qwen(f"<tool_call>\n{one}{between}{one}</tool_call>") == ("", [("add", "{}")] * 2)
    assert qwen(f"<tool_call>\n{one} so <tool_call>{one}") == ("so", [("add", "{}")] * 2)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=add>\n<parameter=\nn>\n5\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=>\n5\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter n>\n5\n</parameter>\n</function>\n</tool_call>",
        call("<parameter=n>1</parameter><parameter=n>2</parameter>"),
        call("stray"),
        call('<parameter=o>\n{"a": 1'),
        "<tool_call>\n<function=add\n</function></tool_call>",
        "<TOOL_CALL>\n<FUNCTION=add>\n</FUNCTION>\n</TOOL_CALL>",
    ],
)
def test_a_malformed_parameter_is_text_and_never_a_key(text: str) -> None:
    assert qwen(text) == (text, [])


def test_unterminated_json_ends_nothing_but_the_call() -> None:
    broken = call('<parameter=o>\n{"a": [1, 2\n</parameter>')
    assert qwen(broken + "\nWell.") == ("Well.", [("add", '{"o": "{\\"a\\": [1, 2"}')])


def test_a_string_parameter_stays_verbatim_even_if_it_looks_like_json() -> None:
    for value in ('{"a": 1}', "[1]", "5", "true", "null", '"q"', "True"):
        assert json.loads(qwen(call(f"<parameter=s>\n{value}\n</parameter>"))[1][0][1]) == {"s": value}


def test_numbers_are_never_strings_in_any_syntax() -> None:
    glm = "<tool_call>add\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"
    assert parse(SYNTAXES["glm45"], list(glm), schemas=SCHEMAS)[1] == [("add", '{"n": 5}')]
    assert parse(SYNTAXES["glm45"], list(glm))[1] == [("add", '{"n": 5}')]


@pytest.mark.parametrize(
    ("attribute", "value", "key", "expected"),
    [
        ('string="true"', "5", "x", "5"),
        ('string="false"', "5", "x", 5),
        ('string="true"', "5", "n", 5),  # the schema knows better
        ('string="true"', "[1]", "s", "[1]"),
        ('string="false"', "[1", "x", "[1"),
    ],
)
def test_dsml_says_which_values_are_strings(attribute: str, value: str, key: str, expected: object) -> None:
    text = (
        f'<｜DSML｜tool_calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="{key}" {attribute}>{value}'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>"
    )
    ((_, found),) = parse(SYNTAXES["deepseek_v4"], list(text), schemas=SCHEMAS)[1]
    assert json.loads(found) == {key: expected}


def test_long_strings_are_streamed_and_other_values_are_whole() -> None:
    parser = ToolCallParser(SYNTAXES["qwen3_coder"], ["add"], schemas=SCHEMAS)
    text = call(f"<parameter=s>\n{'long ' * 400}\n</parameter>\n<parameter=o>\n{[7] * 400}\n</parameter>")
    given = [piece.arguments for char in text for piece in parser.push(char).calls]
    assert len(given) > 30
    assert sum("7, 7" in piece for piece in given) == 1 and "7" * 3 not in "".join(given)


def test_a_long_call_that_breaks_keeps_what_was_streamed_and_the_rest_is_text() -> None:
    value = "".join(chr(97 + i % 26) for i in range(600))
    shown, ((name, found),) = qwen(f"<tool_call>\n<function=add>\n<parameter=s>\n{value}")
    assert name == "add" and found.startswith('{"s": "abc') and not found.endswith('"')
    assert found.removeprefix('{"s": "') + shown == value
