"""Chooses a model's call syntax: from the policy, or from how its chat template renders earlier calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain

from backend.tokenizer.tool_use import PROBE_KEY, PROBE_NAME, ToolUse
from gateway.tool_calls.gemma import GEMMA4
from gateway.tool_calls.harmony import HARMONY
from gateway.tool_calls.hermes import HERMES
from gateway.tool_calls.json_lists import JSON_LISTS
from gateway.tool_calls.llama_json import LLAMA_JSON
from gateway.tool_calls.mistral import MARK, MISTRAL, MISTRAL_NAMED
from gateway.tool_calls.named_json import NAMED_JSON
from gateway.tool_calls.parser import Syntax
from gateway.tool_calls.pythonic import LFM2, OLMO3, PYTHONIC
from gateway.tool_calls.xml_parameters import XML_SYNTAXES

SYNTAXES: Mapping[str, Syntax] = {
    syntax.name: syntax
    for syntax in (
        *(HERMES, LLAMA_JSON, PYTHONIC, MISTRAL, LFM2, OLMO3, GEMMA4, HARMONY),
        *XML_SYNTAXES,
        *NAMED_JSON,
        *JSON_LISTS,
    )
}
_CALL = rf'\{{[^{{}}]*"(?:tool_)?name": "{PROBE_NAME}"'
_EXAMPLES = (
    ("qwen3_coder", rf"<tool_call>\s*<function={PROBE_NAME}>"),
    ("seed_oss", rf"<seed:tool_call>\s*<function={PROBE_NAME}>"),
    ("glm45", rf"<tool_call>{PROBE_NAME}\s*<arg_key>{PROBE_KEY}"),
    ("minimax_m2", rf'<minimax:tool_call>\s*<invoke name="{PROBE_NAME}"'),
    ("deepseek_v32", rf'<｜DSML｜function_calls>\s*<｜DSML｜invoke name="{PROBE_NAME}"'),
    ("deepseek_v4", rf'<｜DSML｜tool_calls>\s*<｜DSML｜invoke name="{PROBE_NAME}"'),
    ("hermes", rf'<tool_call>\s*\{{[^<]*"{PROBE_KEY}"[^<]*</tool_call>'),
    ("deepseek_v3", rf"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{PROBE_NAME}\s*```json"),
    ("deepseek_v31", rf"<｜tool▁call▁begin｜>{PROBE_NAME}<｜tool▁sep｜>"),
    ("kimi_k2", rf'<\|tool_call_begin\|>[^<]*<\|tool_call_argument_begin\|>\s*\{{"{PROBE_KEY}"'),
    ("cohere", rf"<\|START_ACTION\|>\s*\[\s*{_CALL}"),
    ("phi4_mini_json", rf"<\|tool_call\|>\s*\[?\s*{_CALL}[^<]*<\|/tool_call\|>"),
    ("granite", rf"<\|tool_call\|>\s*\[\s*{_CALL}"),
    ("nemotron_json", rf"<TOOLCALL>\s*\[\s*{_CALL}"),
    ("hunyuan_a13b", rf"<tool_calls>\s*\[\s*{_CALL}"),
    ("apertus", rf'<\|tools_prefix\|>\[\{{"{PROBE_NAME}"'),
    ("gemma4", rf"<\|tool_call>call:{PROBE_NAME}\{{{PROBE_KEY}:"),
    (
        "harmony",
        rf"to=functions\.{PROBE_NAME}\s*(?:<\|channel\|>commentary)?[^<]*(?:<\|constrain\|>\w+)?<\|message\|>",
    ),
    ("lfm2", rf"<\|tool_call_start\|>\[{PROBE_NAME}\({PROBE_KEY}="),
    ("olmo3", rf"<function_calls>\s*{PROBE_NAME}\({PROBE_KEY}="),
    ("mistral", rf"\[TOOL_CALLS\]\s*(?:\[\s*\{{[^\[]*\"{PROBE_NAME}\"|{PROBE_NAME})"),
    ("llama3_json", rf'\{{"name": "{PROBE_NAME}", "parameters":'),
    ("pythonic", rf"\[{PROBE_NAME}\({PROBE_KEY}="),
)

_INSTRUCTIONS = (("granite", r"<\|tool_call\|> followed by a JSON list"),)
"""What templates say that do not render earlier calls, as Granite 3's."""


def find_syntax(use: ToolUse, parser: str = "auto") -> Syntax | None:
    """The syntax that the policy's `tool_parser` names; for "auto" that of the template, None if unknown."""
    examples = (name for name, example in _EXAMPLES if re.search(example, use.example))
    told = (name for name, words in _INSTRUCTIONS if re.search(words, use.offer))
    found = SYNTAXES.get(next(chain(examples, told), "") if parser == "auto" else parser)
    if found is MISTRAL and re.search(rf"{re.escape(MARK)}\s*{PROBE_NAME}", use.example):
        return MISTRAL_NAMED
    return found
