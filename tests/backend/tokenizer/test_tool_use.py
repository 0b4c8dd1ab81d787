"""Detection of tool support from a model's template."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken

from backend.tokenizer import Tokenizer
from backend.tokenizer.tool_use import PROBE_NAME
from tests.backend.tokenizer.checkpoints import save_byte_level

TOOLS = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "{{ m.content }}{% endfor %}"
)


def load(folder: Path, template: str) -> Tokenizer:
    added = [AddedToken("<tool_call>", special=True), AddedToken("</tool_call>", special=True)]
    return Tokenizer.from_checkpoint(save_byte_level(folder, added=added, chat_template=template))


@pytest.mark.parametrize(
    ("template", "reads_tools", "reads_results"),
    [
        (TOOLS + CALLS, True, True),
        (TOOLS + TURNS, True, False),
        (CALLS, False, True),
        (TURNS, False, False),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + TURNS, False, False),
        (TOOLS + "{% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}", True, False),
    ],
)
def test_detection_by_rendering(
    tmp_path: Path, template: str, reads_tools: bool, reads_results: bool
) -> None:
    found = load(tmp_path, template).tool_use
    assert (found.reads_tools, found.reads_results) == (reads_tools, reads_results)
    assert (f"<tool_call>{PROBE_NAME}" in found.example) == reads_results


def test_without_a_template_there_are_no_tools(tmp_path: Path) -> None:
    assert not Tokenizer.from_checkpoint(save_byte_level(tmp_path)).tool_use.reads_tools


def test_a_detokenizer_can_show_some_special_tokens(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, TURNS)
    ids = tokenizer.encode("<tool_call>x</tool_call><|im_end|>")
    assert len(ids) == 4
    shown = tokenizer.detokenizer(shown=("<tool_call>", "</tool_call>", "<none>"))
    assert shown.push(ids) + shown.flush() == "<tool_call>x</tool_call>"
    assert tokenizer.detokenizer(shown=("<none>",)).push(ids) == "x"
