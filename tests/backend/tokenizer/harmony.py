"""A tokenizer and a chat template with harmony's channels, written for the tests."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken

from backend.tokenizer.thinking import HARMONY_TOKENS
from tests.backend.tokenizer.checkpoints import save_byte_level

TEMPLATE = """\
<|start|>system<|message|>Reasoning: {{ reasoning_effort or "medium" }}

# Valid channels: analysis, commentary, final.<|end|>
{%- set ns = namespace(name="", messages=messages, system="") %}
{%- if messages[0].role == "system" %}
    {%- set ns.system = messages[0].content %}
    {%- set ns.messages = messages[1:] %}
{%- endif %}
{%- if ns.system or tools %}
    {{- "<|start|>developer<|message|>" + ns.system }}
    {%- for tool in tools or [] %}
        {{- "\\ntype " + tool.function.name + " = (_: " + (tool.function.parameters | tojson) + ") => any;" }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- for m in ns.messages %}
    {%- if m.role == "tool" %}
        {{- "<|start|>functions." + ns.name + " to=assistant<|channel|>commentary<|message|>" }}
        {{- (m.content | tojson) + "<|end|>" }}
    {%- elif m.tool_calls %}
        {%- if m.content and m.thinking %}
            {{- raise_exception("a message with calls has either content or thinking") }}
        {%- endif %}
        {%- set after = namespace(is_answered=false) %}
        {%- for later in ns.messages[loop.index:] %}
            {%- if later.role == "assistant" and "tool_calls" not in later %}
                {%- set after.is_answered = true %}
            {%- endif %}
        {%- endfor %}
        {%- if (m.content or m.thinking) and not after.is_answered %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + (m.content or m.thinking) + "<|end|>" }}
        {%- endif %}
        {%- set ns.name = m.tool_calls[0].function.name %}
        {{- "<|start|>assistant to=functions." + ns.name + "<|channel|>commentary json<|message|>" }}
        {{- (m.tool_calls[0].function.arguments | tojson) + "<|call|>" }}
    {%- elif m.role == "assistant" %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + m.content + "<|end|>" }}
    {%- else %}
        {{- "<|start|>" + m.role + "<|message|>" + m.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif %}
"""


def save_harmony(folder: Path) -> Path:
    """Save the tokenizer and the template; an answer ends with any of three tokens, as gpt-oss says."""
    added = [AddedToken(token, special=True) for token in HARMONY_TOKENS]
    save_byte_level(folder, added=added, chat_template=TEMPLATE, eos_token="<|return|>")
    return folder


def eos_ids(folder: Path) -> list[int]:
    """Ids of the tokens that end an answer."""
    listed = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    ids = {each["content"]: each["id"] for each in listed}
    return [ids["<|return|>"], ids["<|endoftext|>"], ids["<|call|>"]]
