from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from backend.errors import TemplateError
from backend.tokenizer import Tokenizer
from backend.tokenizer.chat_template import ChatTemplate
from tests.backend.tokenizer.checkpoints import save_byte_level

CHATML = """\
{%- if tools %}
<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' ~ message['role'] + '\\n' }}
    {%- if message.reasoning_content is defined %}
        {{- '<think>' + message.reasoning_content + '</think>' }}
    {%- endif %}
    {%- generation %}{{ message['content'] }}{% endgeneration %}
    {{- '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>' }}{% endif %}
{%- endif %}
"""

HEADERS = """\
{{- bos_token }}
{%- set ns = namespace(system='', turns=0) %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nKnowledge: 2023\\n" ~ ns.system ~ "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}{% continue %}{% endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

INST = """\
{{ bos_token }}
{%- macro turn(text) %}{{ '[INST] ' + text.strip() + ' [/INST]' }}{% endmacro %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}{{ turn(message['content']) }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}
{%- endif %}{% endfor %}"""

PARTS = """\
{% for message in messages %}
    {% if message.content is string %}
{{ message.role }}: {{ message.content }}
    {% else %}
{{ message.role }}:{% for part in message.content if part.type == 'text' %} {{ part.text }}{% endfor %}

    {% endif %}
{% endfor %}
{{ dict(a=1).a }} {{ ['é', '<b>'] | tojson(indent=1) }} {{ 'a,b'.split(',')[-1].upper() }}
{% for k, v in {'x': 1, 'y': [2, 3]}.items() if v != 1 %}{{ k ~ v }}{% else %}none{% endfor %}
{{ strftime_now('%Y') | length }} {{ 3 * 'ab' }} {{ 2 ** 5 + 7 % 4 }} {{ '%s-%d' % ('q', 4) }}
{% for m in messages[::-1] %}{{ loop.revindex }}/{{ loop.length }}{{ loop.previtem is defined }}{% endfor %}
"""

TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "inst": INST, "parts": PARTS}
Message = dict[str, Any]
Pair = tuple[Tokenizer, PreTrainedTokenizerBase]


def load(folder: Path, template: str) -> Pair:
    save_byte_level(folder, bos_token="<|endoftext|>")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return Tokenizer.from_checkpoint(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    root = tmp_path_factory.mktemp("templates")
    return {name: load(root / name, template) for name, template in TEMPLATES.items()}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


CHATS: list[list[Message]] = [
    [{"role": "user", "content": "Hello <b>you</b> & me?"}],
    [user(" two  "), assistant("été 🎉\n"), user("3")],
    [user("") | {"name": None}, assistant("x") | {"tool_calls": None}],
]
WITH_SYSTEM: list[list[Message]] = [
    [{"role": "system", "content": "\tTerse. "}, {"role": "user", "content": "{{ messages }} {% raw %}"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning": "since"}],
    [user("q"), {"role": "tool", "content": "t"}, assistant("a")],
]
CASES = [(name, chat) for name in TEMPLATES for chat in CHATS + (WITH_SYSTEM if name != "inst" else [])]


@pytest.mark.parametrize(("name", "chat"), CASES)
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers(
    pairs: dict[str, Pair], name: str, chat: list[Message], prompt: bool
) -> None:
    ours, reference = pairs[name]
    expected = reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
    assert ours.render_chat(chat, prompt) == expected
    ids = reference.apply_chat_template(chat, tokenize=True, return_dict=False, add_generation_prompt=prompt)
    assert ours.encode_chat(chat, prompt) == ids


@settings(deadline=None)
@given(contents=st.lists(st.text(max_size=20), min_size=1, max_size=5))
@pytest.mark.parametrize("name", ["chatml", "headers", "inst"])
def test_any_content_renders_as_transformers(pairs: dict[str, Pair], name: str, contents: list[str]) -> None:
    ours, reference = pairs[name]
    chat = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
    expected = reference.apply_chat_template(chat, return_dict=False, add_generation_prompt=True)
    assert ours.encode_chat(chat) == expected


@pytest.mark.parametrize("name", ["chatml", "headers", "inst"])
@pytest.mark.parametrize("final", ["The answer is", "The answer is ", "  x\n", "🎉"])
def test_continues_the_final_message_as_transformers(pairs: dict[str, Pair], name: str, final: str) -> None:
    ours, reference = pairs[name]
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": final}]
    expected = reference.apply_chat_template(chat, tokenize=False, continue_final_message=True)
    assert ours.render_chat(chat, False, True) == expected
    assert chat[-1]["content"] == final  # the caller's messages stay as they were


def test_text_parts_as_transformers(pairs: dict[str, Pair]) -> None:
    ours, reference = pairs["parts"]
    parts = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]
    chat = [{"role": "user", "content": parts}]
    for flags in ({}, {"continue_final_message": True}):
        expected = reference.apply_chat_template(chat, tokenize=False, **flags)
        assert ours.render_chat(chat, False, **flags) == expected
    assert parts[2] == {"type": "text", "text": "two"}


def test_variables_and_tools_reach_the_template(pairs: dict[str, Pair]) -> None:
    ours, reference = pairs["chatml"]
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>"}}]
    expected = reference.apply_chat_template(
        CHATS[0], tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert ours.render_chat(CHATS[0], tools=tools, enable_thinking=False) == expected
    assert "<think>" in expected


def test_named_templates(tmp_path: Path) -> None:
    sources = {"default": "plain", "tool_use": "with {{ tools[0].name }}"}
    named = [{"name": name, "template": source} for name, source in sources.items()]
    tokenizer = Tokenizer.from_checkpoint(save_byte_level(tmp_path, chat_template=named))
    assert tokenizer.render_chat(CHATS[0]) == "plain"
    assert tokenizer.render_chat(CHATS[0], tools=[{"name": "f"}]) == "with f"


def render(source: str, **variables: object) -> str:
    template = ChatTemplate(source, "checkpoint")
    return template.render(CHATS[0], variables, add_generation_prompt=False, continue_final_message=False)


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("a\n\n{{ raise_exception('Only user roles!') }}", 3, "Only user roles!"),
        ("{% for m in messages %}\n{{ m.content.nothing.more }}\n{% endfor %}", 2, "no attribute 'nothing'"),
        ("\n{{ messages[0].content + 1 }}", 2, ""),
        ("{% macro f(x) %}\n{{ x / 0 }}{% endmacro %}\n\n{{ f(1) }}", 2, "division by zero"),
    ],
)
def test_a_refusal_names_the_line(source: str, line: int, reason: str) -> None:
    with pytest.raises(TemplateError, match=f"at its line {line}: .*{reason}") as caught:
        render(source)
    assert caught.value.param == "messages"


def test_the_template_checks_alternation(pairs: dict[str, Pair]) -> None:
    with pytest.raises(TemplateError, match="line 5: Roles must alternate"):
        pairs["inst"][0].render_chat([{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize(
    ("chat", "flags", "message"),
    [
        ([], {}, "at least one"),
        (CHATS[0], {"add_generation_prompt": True}, "set only one"),
        ([{"role": "assistant"}], {}, "no text to continue"),
        ([{"role": "assistant", "content": [{"type": "image"}]}], {}, "no text to continue"),
        ([{"role": "tool", "content": "dropped by this template"}], {}, "changes or drops"),
    ],
)
def test_messages_that_cannot_be_continued(
    pairs: dict[str, Pair], chat: list[Message], flags: dict[str, bool], message: str
) -> None:
    flags = {"add_generation_prompt": False, **flags}
    with pytest.raises(TemplateError, match=message):
        pairs["headers"][0].render_chat([*chat], continue_final_message=True, **flags)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ (messages | attr('append')).__self__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace(a=1) %}{% set ns.__class__ = 2 %}",
    ],
)
def test_a_template_cannot_reach_python(attack: str) -> None:
    with contextlib.suppress(TemplateError):
        assert render(attack) == ""  # undefined


@pytest.mark.parametrize(
    "attack",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 2 ** (10 ** 9) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}" + "x" * 500 + "{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ ('x' * 10 ** 6).replace('x', 'y' * 10 ** 6) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'x' | center(10 ** 9) }}",
        "{{ 'x' | indent(10 ** 9) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ [1] | tojson(indent=10 ** 9) }}",
        "{{ ('x' * 10 ** 6) | replace('x', 'y' * 10 ** 6) }}",
    ],
)
@pytest.mark.timeout(5)
def test_a_template_cannot_exhaust_memory_or_time(attack: str) -> None:
    with pytest.raises(TemplateError):
        render(attack)


def test_each_rendering_has_its_own_budget() -> None:
    source = "{% for i in range(60000) %}x{% endfor %}"
    assert [len(render(source)) for _ in range(20)] == [60_000] * 20
