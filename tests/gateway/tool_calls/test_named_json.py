"""Names and JSON between tokens: both of DeepSeek's forms, Kimi's ids, and what models forget."""

from __future__ import annotations

import pytest

from gateway.tool_calls.families import SYNTAXES
from gateway.tool_calls.named_json import kimi_id
from tests.gateway.tool_calls.pieces import parse

BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FORMS = {
    "V3": f'{BEGIN}function{SEP}add\n```json\n{{"a": 1}}\n```{END}',
    "V3.1": f'{BEGIN}add{SEP}{{"a": 1}}{END}',
    "V3.1, with space": f'{BEGIN} add {SEP}\n{{"a": 1}}\n{END}\n',
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v31"])
def test_either_syntax_reads_both_forms(name: str, form: str) -> None:
    section = f"<｜tool▁calls▁begin｜>{FORMS[form]}<｜tool▁calls▁end｜>"
    for text in (section, section[:-9], FORMS[form], section.removesuffix("<｜tool▁calls▁end｜>")):
        assert parse(SYNTAXES[name], list(text)) == ("", [("add", '{"a": 1}')])
    assert parse(SYNTAXES[name], list(section + section)) == ("", [("add", '{"a": 1}')] * 2)


@pytest.mark.parametrize(
    "header", ["functions.add:0", "functions.add:17", "add:3", "add", " functions.add:0 "]
)
def test_kimis_header_names_the_function(header: str) -> None:
    text = f'<|tool_call_begin|>{header}<|tool_call_argument_begin|>{{"a": "5"}}<|tool_call_end|>'
    whole = f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>"
    for each in (whole, text):
        assert parse(SYNTAXES["kimi_k2"], list(each)) == ("", [("add", '{"a": "5"}')])


def test_kimis_ids_carry_name_and_number() -> None:
    assert kimi_id("call_x", "get-weather", 3) == "functions.get-weather:3"


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN}add{SEP}5{END}",
        f"{BEGIN}function{SEP}add\n```yaml\na: 1\n```{END}",
        f"{BEGIN}{'x' * 400}{SEP}{{}}",
        f"{BEGIN}{SEP}{{}}{END}",
        f"<｜tool▁calls▁begin｜>add{SEP}{{}}",
    ],
)
def test_anything_but_a_call_is_text(text: str) -> None:
    assert parse(SYNTAXES["deepseek_v3"], list(text)) == (text, [])


def test_text_after_calls_is_text() -> None:
    assert parse(SYNTAXES["deepseek_v31"], list(FORMS["V3.1"] + " So.")) == ("So.", [("add", '{"a": 1}')])
