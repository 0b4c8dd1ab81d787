"""The syntax of a chat template, for calls as the families' published templates render them."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.tokenizer import Tokenizer
from gateway.tool_calls.families import SYNTAXES, find_syntax
from gateway.tool_calls.mistral import MISTRAL, MISTRAL_NAMED
from policies.document import EngineModel, ToolParser
from tests.backend.tokenizer.checkpoints import save_byte_level

BUILTIN = Path(__file__).parents[3] / "backend" / "pico" / "weights" / "pico-small"
LOOP = "{% for m in messages %}{% for c in m.tool_calls or [] %}CALL{% endfor %}{{ m.content }}\n{% endfor %}"
ITEMS = "{% for k, v in c.function.arguments.items() %}"
CALLS = {
    "hermes": '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>",
    "hermes, other order": '<tool_call>{"arguments": {{ c.function.arguments | tojson }}, "name": '
    '"{{ c.function.name }}"}</tool_call>',
    "llama3_json": '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}',
    "mistral": "[TOOL_CALLS] [{{ c.function | tojson }}]",
    "mistral, newer": "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}",
    "pythonic": "[{{ c.function.name }}(ITEMS{{ k }}={{ v | tojson }}{% endfor %})]",
    "qwen3_coder": "<tool_call>\n<function={{ c.function.name }}>ITEMS"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>{% endfor %}</function></tool_call>",
    "seed_oss": "<seed:tool_call>\n<function={{ c.function.name }}>\nITEMS"
    "<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>",
    "glm45": "<tool_call>{{ c.function.name }}\nITEMS"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
    "glm45, newer": "<tool_call>{{ c.function.name }}ITEMS"
    "<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="{{ c.function.name }}">\n'
    "ITEMS"
    '<parameter name="{{ k }}">{{ v }}</parameter>{% endfor %}</invoke>\n</minimax:tool_call>',
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{ c.function.name }}">\n'
    'ITEMS<｜DSML｜parameter name="{{ k }}" string="true">'
    "{{ v }}</｜DSML｜parameter>{% endfor %}</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{{ c.function.name }}">\n'
    'ITEMS<｜DSML｜parameter name="{{ k }}" string="true">'
    "{{ v }}</｜DSML｜parameter>{% endfor %}</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.type + '<｜tool▁sep｜>' }}"
    "{{ c.function.name }}\n```json\n{{ '' + c.function.arguments }}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.function.name + '<｜tool▁sep｜>' "
    "+ c.function.arguments }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>",
    "cohere": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "{{ c.function.name }}", '
    '"parameters": {{ c.function.arguments | tojson }}}\n]<|END_ACTION|>',
    "granite": "<|tool_call|>[{{ c.function | tojson }}]",
    "phi4_mini_json": "<|tool_call|>{{ c.function | tojson }}<|/tool_call|>",
    "nemotron_json": '<TOOLCALL>[{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}]</TOOLCALL>",
    "hunyuan_a13b": "<tool_calls>[{{ c.function | tojson }}]</tool_calls>",
    "apertus": "<|tools_prefix|>[{{ '{\"' ~ c.function.name ~ '\": ' ~ c.function.arguments ~ '}' }}]"
    "<|tools_suffix|>",
    "gemma4": '<|tool_call>call:{{ c.function.name + "{" }}ITEMS{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}'
    "{{ '}' }}<tool_call|>",
    "harmony": "<|start|>assistant to={{ 'functions.' + c.function.name + '<|channel|>commentary ' }}"
    "json<|message|>{{ c.function.arguments | tojson }}<|call|>",
    "harmony, as models write it": "<|start|>assistant<|channel|>commentary to=functions."
    "{{ c.function.name }} <|constrain|>json<|message|>{{ c.function.arguments | tojson }}<|call|>",
    "lfm2": "<|tool_call_start|>[{{ c.function.name }}(ITEMS{{ k }}='{{ v }}'{% endfor %})]<|tool_call_end|>",
    "olmo3": "<function_calls>{{ c.function.name }}(ITEMS{{ k }}={{ v | tojson }}{% endfor %})"
    "</function_calls>",
    "none": "{{ c.function.name }}: {{ c.function.arguments | tojson }}",
}


@pytest.mark.parametrize("name", CALLS)
def test_the_syntax_is_that_of_earlier_calls(tmp_path: Path, name: str) -> None:
    template = LOOP.replace("CALL", CALLS[name].replace("ITEMS", ITEMS))
    use = Tokenizer.from_checkpoint(save_byte_level(tmp_path, chat_template=template)).tool_use
    found = find_syntax(use)
    assert (found.name if found else "none") == name.partition(",")[0]
    named = name == "mistral, newer"
    assert (found is MISTRAL_NAMED) == named
    assert find_syntax(use, "mistral") is (MISTRAL_NAMED if named else MISTRAL)
    assert use.takes_text == (name in ("deepseek_v3", "deepseek_v31", "apertus"))


def test_a_template_may_tell_the_syntax_without_earlier_calls(tmp_path: Path) -> None:
    """Granite 3 names the mark of calls to the model, and renders the text of messages alone."""
    words = "Respond with MARK followed by a JSON list of tools used.\n"
    tools = f"{{% if tools %}}{words}{{{{ tools | tojson }}}}{{% endif %}}"
    found = []
    for mark in ("<|tool_call|>", "<tools>"):
        template = tools.replace("MARK", mark) + "{% for m in messages %}{{ m.content }}{% endfor %}"
        use = Tokenizer.from_checkpoint(save_byte_level(tmp_path, chat_template=template)).tool_use
        assert use.reads_tools and not use.reads_results
        found.append(find_syntax(use))
    assert found == [SYNTAXES["granite"], None]


def test_every_syntax_has_a_template_here() -> None:
    assert {name.partition(",")[0] for name in CALLS} == {"none", *SYNTAXES}


def test_the_embedded_model_uses_qwens_syntax() -> None:
    use = Tokenizer.from_checkpoint(BUILTIN).tool_use
    assert use.reads_tools and use.reads_results
    assert find_syntax(use) is SYNTAXES["hermes"]


def test_policies_know_every_syntax() -> None:
    assert set(ToolParser.__args__) == {"auto", *SYNTAXES}  # type: ignore[attr-defined]
    assert EngineModel(checkpoint="x").tool_parser == "auto"
