"""Texts of files show no value of a field that holds secrets, and lose nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies import nodes
from policies.errors import PolicyError
from policies.masking import masked
from policies.time_limit import at_most

CASES = [  # what a file has, and what is shown of it
    ("password: hunter22", "password: ***"),
    ("a: {api_key: 'abcdef', x: 1}", "a: {api_key: '***', x: 1}"),
    ("- my-secret : zzzz", "- my-secret : ***"),
    ("url: http://user:word@h/v1?x=y", "url: http://***@h/v1?***"),
    ("api_key_env: sk-abcdefghijk", "api_key_env: ***"),
    ("x: Xyz-of-ours", "x: ***"),
    ("[: password: hunter22\n\tand more", "[: password: ***\n\t***"),
    # Blocks, lists, maps
    ("password: |\n  a1\n  a2 # a3\nx: 1\n", "password: |\n  ***\n  ***\nx: 1\n"),
    ("password: >-  # a0\n  a1\n\n  a2\nx: 1\n", "password: >-  ***\n  ***\n\n  ***\nx: 1\n"),
    ("a:\n  token: |2+\n     a1\n\n# more\nx: 1\n", "a:\n  token: |2+\n     ***\n\n# more\nx: 1\n"),
    ("api_keys:\n- a1\n- 'a2'\nx: 1", "api_keys:\n- ***\n- '***'\nx: 1"),
    ('secrets: [a1, "a2", {a3: a4}]\nx: [1]', 'secrets: [***, "***", {***: ***}]\nx: [1]'),
    ("password:\n  one: a1\n  two: [a2]\nx: 1", "password:\n  ***: ***\n  ***: [***]\nx: 1"),
    ("password: a1\n  a2\n\n  a3\nx: 1", "password: ***\n  ***\n\n  ***\nx: 1"),
    ('password: "a1\n  a2"\nx: 1', 'password: "***\n  ***"\nx: 1'),
    ("db:\n  password:\n    a1\nx: 1", "db:\n  password:\n    ***\nx: 1"),
    # Values with marks of YAML in them
    ("password: a1#a2\n", "password: ***\n"),
    ("password: a1 #a2\nx: 1 # y\n", "password: *** # ***\nx: 1 # y\n"),
    ("{password: a1 #a2, y\n, x: 1}", "{password: *** # ***\n, x: 1}"),
    ("password: a1'a2\"a3\n", "password: ***\n"),
    ("password: 'it''s a1'\n", "password: '***'\n"),
    ('password: "a1\\"a2"\n', 'password: "***"\n'),
    ("password: !a1\n", "password: ***\n"),
    ("password: !a1 {x: a2}\n", "password: *** {***: ***}\n"),
    ("password: &a1 a2\n", "password: ***\n"),
    ("password: !!str |\n  a1\n", "password: ***\n  ***\n"),
    ("password: *a1\n", "password: ***\n"),
    ("password:\ta1\n", "password:\t***\n"),
    ("password: ü🦦\nx: 🦦\n", "password: ***\nx: 🦦\n"),
    ("password: |\n  a1\u2028a2\nx: 1\n", "password: |\n  ***\nx: 1\n"),
    # Names
    ('"pass\\u0077ord": a1\n', '"pass\\u0077ord": ***\n'),
    ("? password\n: a1\n", "? password\n: ***\n"),
    ("? [password]\n: a1\n", "? [password]\n: ***\n"),
    ("? {x: 1}\n: a1\n", "? {x: 1}\n: ***\n"),
    ("'api key': a1\nDB.Password: a2\n", "'api key': ***\nDB.Password: ***\n"),
    ("password: a1\npassword: a2\n", "password: ***\npassword: ***\n"),
    ("пароль: 1\nclient_secret: a1\n", "пароль: 1\nclient_secret: ***\n"),
    ("access_tokens: [a1]\nmax_tokens: 5\n", "access_tokens: [***]\nmax_tokens: 5\n"),
    ("my_key: b1c2d3e4f5a6b7c8\nproxy: b1c2d3e4f5a6b7c8\n", "my_key: ***\nproxy: ***\n"),
    # Names that YAML reads as a part of a longer one
    ("headers: {authorization:a1}\n", "headers: {authorization:***}\n"),
    ("x: {api_key:a1, timeout: 5}\n", "x: {api_key:***, timeout: 5}\n"),
    ("password:a1 : a2\nx: 1\n", "password:*** : ***\nx: 1\n"),
    ('client_secret": Basic a1\nx: 1\n', 'client_secret": ***\nx: 1\n'),
    ("'token ': a1\nx: 1\n", "'token ': ***\nx: 1\n"),
    # URLs and keys as YAML may write them
    (r'x: "redis:\/\/:a1@h"', 'x: "***"'),
    (r'x: ["https:\/\/h\/?key=a1", "https:\/\x2fu:a1@h", y]', r'x: ["***", "***", y]'),
    (r'x: "https://u:a1\x40h"', 'x: "***"'),
    ('x: "https://u:a\\\n  1@h"\ny: 1', 'x: "***\n  ***"\ny: 1'),
    ('x: "https://u@a\\\n  1@h"\ny: 1', 'x: "***\n  ***"\ny: 1'),
    ("x: Bearer\n  a1\ny: 1", "x: ***\n  ***\ny: 1"),
    ("x: |\n  Bearer\n  a1\ny: 1", "x: |\n  ***\n  ***\ny: 1"),
    ("x: |\n  Say hello to\n  https://u:a1@h\n", "x: |\n  Say hello to\n  https://***@h\n"),
    (r"# redis:\/\/:a1@h", r"# redis:\/\/***@h"),
    ("# redis://:a1@a2/a3@h/0\n", "# redis://***@h/0\n"),
    ("# https://u:a1?a2@h http://h/?a1=a@a2\n", "# https://*** http://***\n"),
    # Anchors, documents, line ends
    ("x: &a a1\npassword: *a\n", "x: ***\npassword: *a\n"),
    ("a: &x {b: &y [a1]}\nc: *y\ntoken: *x\n", "a: *** {***: *** [***]}\nc: *y\ntoken: *x\n"),
    ("<<: &b {token: a1}\nx: *b\n", "<<: &b {token: ***}\nx: *b\n"),
    ("x: &a {password: a1, b: *a}\n", "x: &a {password: ***, b: *a}\n"),
    ("%YAML 1.1\n---\nx: 1\n---\ntoken: a1\n...\n", "%YAML 1.1\n---\nx: 1\n---\ntoken: ***\n...\n"),
    ("password:\r\n  a1\r\nx: 1\r\n", "password:\r\n  ***\r\nx: 1\r\n"),
    ("\ufeffpassword: a1\r\nx: 1\r\n", "\ufeffpassword: ***\r\nx: 1\r\n"),
    # Comments, and texts in values
    ("# password: a1\nx: 1\n", "# password: ***\nx: 1\n"),
    ("x: 1 # token = a1\n", "x: 1 # token = ***\n"),
    ("# password: |\n#   a1\n#   a2\n# x: y\nz: 1\n", "# password: |\n#   ***\n#   ***\n# x: y\nz: 1\n"),
    ("# api_keys:\n# - a1\n# The end.\n\nx: 1\n", "# api_keys:\n# - ***\n# ***\n\nx: 1\n"),
    ("x: |  # token: a1\n  y\n", "x: |  # token: ***\n  y\n"),
    ("# Clients send a bearer\n# key of theirs.\n", "# Clients send a bearer\n# key of theirs.\n"),
    ("# Xyz-\n  of-ours\nx: 1\n", "# ***\n\nx: 1\n"),
    ("system: 'the password: a1'\n", "system: 'the password: ***'\n"),
    ("system: |\n  Say it.\n  PASSWORD=a1\n", "system: |\n  Say it.\n  PASSWORD=***\n"),
    # What is no YAML
    ("{password:\na1", "{password:\n***"),
    ("\tpassword: a1\nx: 1\n", "\tpassword: ***\nx: 1\n"),
    ("? password\n: a1\nx: y\n[", "? password\n***\nx: y\n["),
    ("token: |\n a1\n\n a2\nx: y\n]", "token: |\n ***\n\n ***\nx: y\n]"),
    ("token: # a0\na1\nx: y\n]", "token: ***\n***\nx: y\n]"),
    ("api_keys:\n- a1\nx: y\n]", "api_keys:\n- ***\nx: y\n]"),
    ("[" * 30 + "{password: a1, x: y}", "[" * 30 + "{password: ***"),
    ("a: {token: {b: a1,\nc: a2,\nx: 'a3", "a: {token: ***\n***\n***"),
    ("token: 'a1\nx: a2\n", "token: ***\n***\n"),
    ("x: \0\npassword: a1\n", "x: \0\npassword: ***\n"),
    ("x: Bearer\n  a1\ny: 1\n]", "x: Bearer\n  ***\ny: 1\n]"),
    # What is no secret
    ("password: ${DB}\ntoken: '${T_1}'\n", "password: ${DB}\ntoken: '${T_1}'\n"),
    (
        "api_keys: [key-1a2b3c4d]\nsecret: null\ntoken: ''\n",
        "api_keys: [key-1a2b3c4d]\nsecret: null\ntoken: ''\n",
    ),
    ("]\ntoken: ${T}\npassword: ''\n", "]\ntoken: ${T}\npassword: ''\n"),
    ("when: 'request.token == 1'\n", "when: 'request.token == 1'\n"),
    ("token: ${T:-a1}\n", "token: ***\n"),
]


@pytest.fixture(params=["libyaml", "python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads where PyYAML has been built without libyaml gives the same."""
    if request.param == "python":
        monkeypatch.setattr(nodes, "_FastLoader", nodes._Loader)


@pytest.mark.parametrize(("text", "shown"), CASES, ids=[repr(text)[:50] for text, _ in CASES])
def test_a_files_text_shows_no_secret(loader: None, text: str, shown: str) -> None:
    assert masked(text, ["Xyz-of-ours"]) == shown


@pytest.mark.parametrize("path", sorted(Path("policies").glob("**/*.yaml")), ids=str)
def test_files_that_ship_are_shown_as_they_are(path: Path) -> None:
    text = path.read_text()
    assert masked(text, ()) == text


def test_reading_a_file_ends_with_its_time() -> None:
    with at_most(0), pytest.raises(PolicyError, match="take over 0 s"):
        masked("# x: 1", ())


def test_digests_variables_and_ids_of_keys_are_shown() -> None:
    text = (
        f"sha256: {{a: {'9f86d081' * 8}}}\napi_key_env: OPENAI_API_KEY\nkeys: [key-1a2b3c4d, key-00000000]\n"
    )
    assert masked(text, ()) == text


CANARY = "hunter22"
TEXTS = (
    "one",
    f"{CANARY} # {CANARY}",
    f"it's {CANARY}",
    f'"{CANARY}',
    f"{CANARY}\n{CANARY}\n",
    f" {CANARY}🦦\t",
)


def _value(draw: random.Random, depth: int, texts: tuple[str, ...]) -> Any:  # noqa: ANN401
    kind = draw.randrange(4) if depth else 0
    if kind == 1:
        return [_value(draw, depth - 1, texts) for _ in range(draw.randrange(4))]
    if kind == 2:
        return {f"k{n}": _value(draw, depth - 1, texts) for n in range(draw.randrange(4))}
    return draw.choice(texts)


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
def test_whatever_is_below_such_a_field_is_hidden_and_nothing_else(is_cut: bool) -> None:
    """In every style; a text that is cut within a line is mostly no YAML."""
    draw = random.Random(39)
    for _ in range(150):
        fields = {f"x{n}": _value(draw, 2, ("plain", "two\nlines\n", "it's #1")) for n in range(2)}
        fields[draw.choice(("password", "my_api_keys", "Token"))] = _value(draw, 3, TEXTS)
        fields["z"] = "end"
        style, is_flow = draw.choice((None, "'", '"', "|", ">")), draw.choice((True, False, None))
        text = yaml.safe_dump(
            {"top": fields}, default_style=style, default_flow_style=is_flow, sort_keys=False, width=30
        )
        text = text[: draw.randrange(len(text))] if is_cut else text
        shown = masked(text, ())
        assert CANARY not in shown, text
        assert shown.count("\n") == text.count("\n")
        if not is_cut:
            assert shown.startswith(text[: text.index("x1")]) and shown.endswith(text[text.rindex("end") :])
