"""Detection of a model's reasoning mode from its template and vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken

from backend.tokenizer import Tokenizer
from backend.tokenizer.thinking import HARMONY, THINK, ThinkingMode
from tests.backend.tokenizer.checkpoints import save_byte_level

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASSISTANT = "<|im_start|>assistant\n"
HI = [{"role": "user", "content": "hi"}]
CASES = {
    "opens a thought when asked": (
        "{% if enable_thinking %}<think>\n{% endif %}",
        ThinkingMode(("enable_thinking",), is_default=False),
    ),
    "closes an empty thought when asked not to think": (
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
        ThinkingMode(("enable_thinking",), is_default=True),
    ),
    "another name": (
        "{% if thinking %}<think>{% else %}</think>{% endif %}",
        ThinkingMode(("thinking",), is_default=False),
    ),
    "always": ("<think>\n", ThinkingMode((), is_default=True)),
    "never": ("", ThinkingMode()),
    "refuses to think": (
        "{% if enable_thinking %}{{ raise_exception('no') }}{% endif %}{# <think> #}",
        ThinkingMode(("enable_thinking",), is_default=False),
    ),
}


TAGS = {
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "<think>": "</think>",
}


@pytest.mark.parametrize("opening", TAGS)
def test_tags_are_those_in_the_template(tmp_path: Path, opening: str) -> None:
    tokenizer = load(tmp_path, f"{{% if enable_thinking %}}{opening}\n{{% endif %}}")
    mode = tokenizer.thinking
    assert (mode.tags.opening, mode.tags.closing) == (opening, TAGS[opening])
    assert tokenizer.opens_thought(tokenizer.encode_chat(HI, enable_thinking=True))
    assert not tokenizer.opens_thought(tokenizer.encode_chat(HI))


@pytest.mark.parametrize("tag", ["answer", "response"])
def test_tags_around_the_answer_are_found_in_the_template(tmp_path: Path, tag: str) -> None:
    template = f"{{% if false %}}<think>\n\n</think>\n<{tag}>\n\n</{tag}>{{% endif %}}"
    assert load(tmp_path, template).thinking.tags.around_answer == (f"<{tag}>", f"</{tag}>")
    assert load(tmp_path, template.replace(f"/{tag}>", "/reply>")).thinking.tags is THINK


def test_channels_are_found_in_the_template(tmp_path: Path) -> None:
    earlier = "{% if false %}<|start|>assistant<|channel|>analysis<|message|>{% endif %}"
    assert load(tmp_path, earlier).thinking == ThinkingMode(is_default=True, tags=HARMONY)


def test_parts_of_tags_are_hidden_tags(tmp_path: Path) -> None:
    added = [AddedToken(token, special=True) for token in ("<|channel>", "<channel|>", "<|turn>")]
    template = TURNS + "<|channel>thought\n<channel|>"
    tokenizer = Tokenizer.from_checkpoint(save_byte_level(tmp_path, added=added, chat_template=template))
    assert sorted(tokenizer.hidden_tags.values()) == ["<channel|>", "<|channel>"]


def load(folder: Path, tail: str) -> Tokenizer:
    return Tokenizer.from_checkpoint(save_byte_level(folder, chat_template=TURNS + ASSISTANT + tail))


@pytest.mark.parametrize("name", CASES)
def test_the_mode_is_found_by_rendering(tmp_path: Path, name: str) -> None:
    tail, mode = CASES[name]
    assert load(tmp_path, tail).thinking == mode


def test_a_checkpoint_without_a_template_cannot_think(tmp_path: Path) -> None:
    assert not Tokenizer.from_checkpoint(save_byte_level(tmp_path)).thinking.can_think


def test_opens_thought(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "{% if enable_thinking %}<think>\n{% endif %}")
    assert tokenizer.opens_thought(tokenizer.encode_chat(HI, enable_thinking=True))
    assert not tokenizer.opens_thought(tokenizer.encode_chat(HI))
    about_tags = [{"role": "user", "content": "What does <think> mean?"}]
    assert not tokenizer.opens_thought(tokenizer.encode_chat(about_tags))


def test_only_special_tags_are_hidden(tmp_path: Path) -> None:
    plain = Tokenizer.from_checkpoint(save_byte_level(tmp_path / "plain"))
    assert plain.hidden_tags == {}
    tags = [AddedToken(tag, special=True) for tag in ("<think>", "</think>")]
    special = Tokenizer.from_checkpoint(save_byte_level(tmp_path / "special", added=tags))
    assert sorted(special.hidden_tags.values()) == ["</think>", "<think>"]
    assert [special.token_text(token_id) for token_id in special.hidden_tags] == ["<think>", "</think>"]
