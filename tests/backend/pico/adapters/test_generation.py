"""Greedy decoding of a batch gives what each conversation gives alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.pico.adapters import generation
from backend.pico.adapters.generation import answer_in, answers
from backend.pico.adapters.weights import WEIGHTS, load_base
from backend.pico.conversations import Conversation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42<|im_end|><|endoftext|>", "42"),
        ("7+5=12\n</think>\n\n12<|im_end|>\n", "12"),
        ("<tool_call>\n{}\n</tool_call><|im_end|>", "<tool_call>\n{}\n</tool_call>"),
        ("no end", "no end"),
    ],
)
def test_answer_in(text: str, expected: str) -> None:
    assert answer_in(text) == expected


def test_a_batch_equals_single_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MAX_NEW_TOKENS", {False: 8})
    model, tokenizer = load_base(Path(WEIGHTS / "pico-small"))
    asked = [
        Conversation(
            messages=[{"role": "user", "content": text}, {"role": "assistant", "content": ""}], tools=None
        )
        for text in ("What is 12 + 5?", "Sort: 9, 6, 3", "Hi")
    ]
    together = answers(model, tokenizer, asked, thinking=False)
    assert together == [answers(model, tokenizer, [one], thinking=False)[0] for one in asked]
    assert together[1] == "3, 6, 9"
