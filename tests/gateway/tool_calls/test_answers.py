"""Answers as users have them, in every syntax; and what was complained of in one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.tool_calls.families import SYNTAXES
from tests.gateway.tool_calls.pieces import Calls, decoded, parse
from tests.gateway.tool_calls.writers import WRITERS, schemas

CODE = 'def f(x: dict[str, int]) -> str:\n\treturn f"{x[\'a\']:>5}" if x else "\\n"  # (ok]\n'
HTML = "<div class=\"a\">\n  <p id='b'>1 &lt; 2</p><!-- </parameter -->\n</div>"
JSON_TEXT = '{"name": "rm", "arguments": {"path": "/"}}'
MARKS = "<tool_call> [TOOL_CALLS] <|tool_call> <｜tool▁call▁begin｜> <function= <|python_tag|> <TOOLCALL>[{"
VALUES: dict[str, dict[str, Any]] = {
    "Arabic": {"q": "ما هي عاصمة مصر؟"},
    "Chinese": {"城市": "北京，“朝阳区”", "q": "天气《今天》"},
    "Hindi": {"q": "दिल्ली का मौसम कैसा है?"},
    "Turkish": {"q": "İstanbul'da ığdır şöleni"},
    "families of emoji": {"q": "👩‍👩‍👧‍👦🏳️‍🌈 ok"},
    "combining characters": {"q": "e\u0301 n\u0303 \u200b"},
    "marks of direction": {"q": "\u202eabc\u202c \u2066x\u2069"},
    "Python": {"code": CODE},
    "Python with triple quotes": {"code": "\"\"\"Doc.\"\"\"\nx = '''y'''\n"},
    "HTML": {"body": HTML},
    "shell": {"command": "cat <<'EOF' > \"$HOME/x\"\n$(date) `ls` \\\nEOF\n[ -f a ] && echo $((1+2))"},
    "SQL": {"query": "SELECT * FROM \"t\" WHERE a <> 'b''c' AND d >= 5; -- no"},
    "a regular expression": {"pattern": r"^(?:\d{3}|[^\]\\\"]+)\s*$"},
    "LaTeX": {"text": r"\frac{a}{b} \{x\} $\alpha_{1}$"},
    "a path": {"path": "C:\\new\\table.txt", "url": "https://x.test/?a=1&b=[2]#c:d"},
    "a diff": {"patch": "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a = {}\n+a = {'b': 1}\n"},
    "JSON in a string": {"body": JSON_TEXT},
    "JSON in JSON in a string": {"body": json.dumps({"a": JSON_TEXT})},
    "marks of calls": {"q": MARKS},
    "a beginning of a mark": {"q": "a <", "r": "<|", "s": "<tool_cal"},
    "braces": {"q": "}}]])", "r": "{[("},
    "quotes": {"q": "\"'`", "r": 'it\'s "so"', "s": "\\", "t": '\\"'},
    "nested": {"o": {"a": [{"b": {"c": [[], {}, [None, [True, {"d": "e"}]]]}}]}},
    "numbers": {"i": 0, "j": -17, "k": 2**63, "x": 1.5, "y": -2.5e-07, "z": 1e21},
    "words": {"t": True, "f": False, "n": None},
    "words as text": {"t": "true", "f": "None", "n": "null", "i": "017", "x": "1e5", "l": "[1]"},
    "nothing": {},
    "empty values": {"s": "", "l": [], "o": {}},
    "spaces": {"s": "  a  b  ", "r": " "},
    "line breaks": {"s": "a\r\nb\n\nc\td"},
    "odd keys": {"name": "x", "arguments": {"name": "y"}, "from": 1, "class": "z", "n_1": 2},
    "many": {f"k{i}": i for i in range(60)},
    "long": {"text": "All work and no play. " * 800},
    "a long list": {"l": list(range(500))},
}
FRAMES = [
    "CALL",
    "Let me look: CALL",
    "CALL\nThat was it.",
    "1 < 2 and <b>bold</b> {x} CALL [y] (z)",
    "雨\n\nCALL\n\n雨",
    "First CALL then CALL at last",
    "UNKNOWN CALL",
    "CALL UNKNOWN",
    "TWICE",
    "TWICE and CALL",
    "A mark cut in the middle: CUT",
    "CALL CUT",
    "```\nCALL\n```",
]


def same_in_all_cuts(name: str, text: str, types: dict[str, Any]) -> tuple[str, Calls]:
    """Text and calls of an answer, whole, by character and in pieces."""
    whole = parse(SYNTAXES[name], [text], schemas=types)
    for size in (1, 3, 17) if len(text) < 2000 else (5,):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert parse(SYNTAXES[name], pieces, schemas=types) == whole
    return whole


@pytest.mark.parametrize("name", WRITERS)
def test_arguments_arrive_as_they_were_written(name: str) -> None:
    assert len(VALUES) + len(FRAMES) >= 47
    for title, values in VALUES.items():
        made = [("add", values)]
        shown, found = same_in_all_cuts(name, WRITERS[name](made), schemas(made))
        assert (shown, decoded(found)) == ("", made), title


@pytest.mark.parametrize("name", WRITERS)
def test_text_around_calls_stays(name: str) -> None:
    made = [("add", {"a": "5", "n": 5})]
    call = WRITERS[name](made)
    unknown = WRITERS[name]([("rm", {"a": "5"})])
    twice = WRITERS[name]([*made, ("look_up", {})])
    cut = call[: len(call) // 2]
    for frame in FRAMES:
        text = frame.replace("CALL", call).replace("UNKNOWN", unknown).replace("TWICE", twice)
        text = text.replace("CUT", cut)
        shown, found = same_in_all_cuts(name, text, schemas(made))
        count = frame.count("CALL") + 2 * frame.count("TWICE")
        expected = [*made, ("look_up", {})] if "TWICE" in frame else made
        assert decoded(found) == (expected + made * 2)[:count], frame
        words = frame.replace("CALL", " ").replace("TWICE", " ")
        words = words.replace("UNKNOWN", unknown).replace("CUT", cut)
        assert shown.split() == words.split(), frame


NUMBERS = {
    "add": {"properties": {"i": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"}}}
}
ONE = [("add", {"i": 5})]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # The block's tag is left out, or stands alone.
        ("qwen3_coder", "<function=add>\n<parameter=i>\n5\n</parameter>\n</function>", ONE),
        ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=i>5</parameter>\n</tool_call>", ONE),
        ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=i>\n5\n</parameter>\n</function>", ONE),
        ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=i>\n5.0\n</parameter>\n</function>", ONE),
        (
            "qwen3_coder",
            "<tool_call><function=add><parameter=b>True</parameter><parameter=o>{'a': None}</parameter>"
            "</function></tool_call>",
            [("add", {"b": True, "o": {"a": None}})],
        ),
        ("hermes", '<tool_call>\n{"name": "add", "arguments": {"i": 5}}}\n</tool_call>', ONE),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"i\\": 5}"}</tool_call>', ONE),
        ("hermes", '<tool_call>\n{"name": "add", "arguments": {"i": 5}', ONE),
        ("llama3_json", '{"type": "function", "name": "add", "parameters": {"i": 5}}', ONE),
        ("granite", '<tool_call>[{"name": "add", "arguments": {"i": 5}}]</tool_call>', ONE),
        ("granite", '<tool_call>[{"arguments": {"i": 5}, "name": "add"}]', ONE),
        ("granite", '<|tool_call|> [{"name": "add", "arguments": {"i": 5}}]', ONE),
        ("nemotron_json", '<TOOLCALL>[{"name": "add", "arguments": {"i": 5}}]', ONE),
        ("phi4_mini_json", '<|tool_call|>{"name": "add", "arguments": {"i": 5}}<|/tool_call|>', ONE),
        ("glm45", "<tool_call>add<arg_key>i</arg_key><arg_value>5</arg_value></tool_call>", ONE),
        ("glm45", "<tool_call>add\n<arg_key>i</arg_key>\n5</arg_value>\n</tool_call>", ONE),
        ("glm45", "<tool_call>add<arg_key>i</arg_key></arg_key><arg_value>5</arg_value></tool_call>", ONE),
        ("glm45", "<tool_call>add\n</tool_call>", [("add", {})]),
        ("glm45", "<tool_call>add<arg_key>s</arg_key></arg_value></tool_call>", [("add", {"s": ""})]),
        ("pythonic", '{"type": "function", "name": "add", "parameters": {"i": 5}}', ONE),
        ("pythonic", '<|python_start|>{"name": "add", "parameters": {"i": 5}}', ONE),
        ("kimi_k2", '<|tool_call_begin|>functions.add:12<|tool_call_argument_begin|>{"i": 5}', ONE),
        ("lfm2", "<|tool_call_start|>[add(i=5)]", ONE),
        ("gemma4", "<|tool_call>call:add{i:5}", ONE),
    ],
)  # fmt: skip
def test_what_models_write_instead_is_read(name: str, text: str, expected: list[tuple[str, Any]]) -> None:
    shown, found = same_in_all_cuts(name, text, NUMBERS)
    assert (shown, decoded(found)) == ("", expected)
