"""Grammars inside a JSON string accept the escaped texts that they accept without escapes, and no others."""

from __future__ import annotations

import contextlib
import json
import time
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from backend.structured.quoted import quoted_lark, quoted_regex


class _Bytes:
    """A vocabulary of bytes."""

    eos_token_id = 256
    bos_token_id = None
    tokens: ClassVar[list[bytes]] = [bytes([i]) for i in range(256)] + [b"<end>"]
    special_token_ids: ClassVar[list[int]] = [256]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))
PATCH = r"""
start: head change+ tail
head: "<<< Patch" LF
tail: "Patch >>>" LF?
change: new | gone
new: "new file: " name LF line+
gone: "gone file: " name LF
name: /(.+)/
line: ("+" | "-") /(.*)/ LF -> text
%import common.LF
"""
SCRIPT = r"""
start: noted | plain
noted: NOTE BREAK SOURCE
plain: SOURCE
NOTE: /[ \t]*\/\/ @run:[^\r\n]*/
BREAK: /\r?\n/
SOURCE: /[\s\S]+/
"""
SUM = """
?start: NUMBER ("+"i NUMBER)*  // of spaced numbers
%import common (NUMBER, WS)
%ignore WS
"""
QUOTATION = r'start: "say " ESCAPED_STRING "a".."c"~1..2' + "\n%import common.ESCAPED_STRING"


def accepts(grammar: str, text: str) -> bool:
    source = 'start: "\\"" inner "\\""\ninner: %lark {\n' + grammar + "\n}\n"
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(source), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(json.dumps(text, ensure_ascii=False).encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("grammar", "text", "is_accepted"),
    [
        (PATCH, '<<< Patch\nnew file: a "b" \\ c\n+x\ty\n-\n+ü\nPatch >>>\n', True),
        (PATCH, "<<< Patch\ngone file: a\nPatch >>>", True),
        (PATCH, "<<< Patch\nnew file: \n+x\nPatch >>>", False),
        (PATCH, "hello", False),
        (SCRIPT, "// @run: now\nprint('\\n')", True),
        (SCRIPT, "", False),
        (SUM, " 1 + 2.5\n+3e9 ", True),
        (SUM, "1 2", False),
        (QUOTATION, 'say "x \\" y"ab', True),
        (QUOTATION, 'say "x"ad', False),
        ("start: /[\\r\\n]+/", "\n\r\n", True),
        ('start: "AB\\n"i', "aB\n", True),
        ('start: "AB\\n"i', "aB\\n", False),
    ],
)
def test_grammars(grammar: str, text: str, is_accepted: bool) -> None:
    assert accepts(quoted_lark(grammar), text) is is_accepted


@settings(max_examples=60)
@given(st.text(alphabet='ab"\\\n\té', max_size=6))
def test_expressions_accept_what_python_accepts(text: str) -> None:
    import re

    for pattern in ('a.*"', r"[^a\n]+", r"(a|b\n)*?\\?", r"\s?\w{1,3}", r'(?i:A)"|[\\"]+', r"\S+\W"):
        assert accepts(quoted_regex(pattern), text) is (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    "grammar",
    [
        "start: /a(?=b)/",
        r"start: /(a)\1/",
        "start: /(/",
        'start: "x',
        "start: %json {}",
        "start: A\nA.2: /x/",
        "%import other.A\nstart: A",
        "start: /a{9999}/",
    ],
)
def test_what_cannot_be_quoted_is_an_error(grammar: str) -> None:
    with pytest.raises(ValueError, match="line|expression|import|priority|repetition"):
        quoted_lark(grammar)


@pytest.mark.parametrize("unit", ["a ", '"a" ', "/a/ ", "// a\n", "(", "%ignore /x/\n", "\\", '"', "\n"])
def test_quoting_costs_linear_time(unit: str) -> None:
    costs = []
    for count in (1000, 4000):
        begun = time.process_time()
        with contextlib.suppress(ValueError):
            quoted_lark("start: " + unit * count)
        costs.append(time.process_time() - begun)
    assert costs[1] < 10 * costs[0] + 0.1
