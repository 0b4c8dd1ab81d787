"""Questions are distinct, every cell is asked and graded, and the decoder is the engine."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch

from backend.pico.conversations import Conversation
from backend.pico.curriculum import Cell
from backend.pico.decoder import Completion, Decoder
from backend.pico.evaluate import Selection, draw_instances, evaluate, load, mean_accuracy, record, table
from backend.pico.recipe import WEIGHTS
from backend.pico.tasks import FAMILIES, split_of
from backend.pico.tokenizer import render

SMALL = WEIGHTS / "pico-small"
END = 2  # the id of <|im_end|>


def written(text: str, num_tokens: int = 3) -> Completion:
    return Completion(text, [0] * num_tokens, is_complete=True)


class Oracle:
    """Knows every answer, and reasons if told to."""

    def __init__(self) -> None:
        self.asked: list[Conversation] = []

    def answer(self, asked: Sequence[Conversation], *, thinking: bool) -> list[Completion]:
        self.asked += asked
        texts = [found["messages"][-1]["content"] for found in asked]
        return [written(f"well\n</think>\n\n{text}" if thinking else text) for text in texts]


def test_questions_are_distinct_and_of_the_split() -> None:
    for name in ("references", "tools", "instructions", "facts"):
        drawn = draw_instances(FAMILIES[name], 1, 30, "validation", seed=0)
        assert {split_of(instance) for instance in drawn} == {"validation"}
        assert len({(i.prompt, i.context) for i in drawn}) == len(drawn) == 30
    assert drawn == draw_instances(FAMILIES["facts"], 1, 30, "validation", seed=0)
    assert drawn != draw_instances(FAMILIES["facts"], 1, 30, "validation", seed=1)


def test_same_prompt_in_another_context_is_another_question() -> None:
    drawn = draw_instances(FAMILIES["references"], 1, 60, "test", seed=0)
    assert len({instance.prompt for instance in drawn}) < len(drawn)


@pytest.mark.parametrize("thinking", [False, True])
def test_every_cell_is_asked_and_graded(thinking: bool) -> None:
    oracle = Oracle()
    selection = Selection(2, thinking=thinking)
    scores = evaluate(oracle, selection)  # type: ignore[arg-type]
    assert set(scores) == {Cell(name, tier, thinking) for name in FAMILIES for tier in range(1, 6)}
    assert mean_accuracy(scores, [1, 2, 3, 4, 5]) == 1.0
    assert sum(score.asked for score in scores.values()) == len(oracle.asked)


def test_wrong_answers_count_in_their_cell() -> None:
    class Wrong(Oracle):
        def answer(self, asked: Sequence[Conversation], *, thinking: bool) -> list[Completion]:
            right = super().answer(asked, thinking=thinking)
            return [written("no idea", 2), *right[1:]]

    selection = Selection(4, families=("sorting", "units"), tiers=(1, 3))
    scores = evaluate(Wrong(), selection)  # type: ignore[arg-type]
    assert [score.accuracy for score in scores.values()] == [0.75, 1.0, 1.0, 1.0]
    ((instance, text),) = scores[Cell("sorting", 1)].failures
    assert instance.family == "sorting" and text == "no idea"
    assert table(scores).splitlines()[2:] == [
        "| sorting | 75.0 (4) | 100.0 (4) |",
        "| units | 100.0 (4) | 100.0 (4) |",
        "| **mean** | **87.5** | **100.0** |",
    ]
    found = record(scores, selection)
    assert found["cells"][0] == ["sorting", 1, 4, 3]
    assert found["generated_tokens"] == 3 * 15 + 2
    assert json.loads(json.dumps(found)) == found


def test_unfinished_reasoning_has_no_answer() -> None:
    class Endless(Oracle):
        def answer(self, asked: Sequence[Conversation], *, thinking: bool) -> list[Completion]:
            return [written(found["messages"][-1]["content"]) for found in asked]

    scores = evaluate(Endless(), Selection(2, families=("arithmetic",), thinking=True))  # type: ignore[arg-type]
    assert mean_accuracy(scores, [1]) == 0.0


def test_load_reads_a_stored_member() -> None:
    model, tokenizer = load(SMALL)
    assert model.get_input_embeddings().weight.dtype == torch.float32
    assert tokenizer.get_vocab_size() == model.config.vocab_size


def test_decoder_gives_what_transformers_gives() -> None:
    selection = Selection(1, families=("arithmetic", "tools", "smalltalk"), tiers=(1, 4), split="validation")
    prompts = [
        render([{"role": "user", "content": i.prompt}], add_generation_prompt=True)
        for found in selection.instances().values()
        for i in found
    ]
    model, tokenizer = load(SMALL)
    expected = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        output = model.generate(  # type: ignore[misc]
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
        found = output[0, ids.shape[1] :].tolist()
        answer = [token for token in found if token != END]
        text = tokenizer.decode(answer, skip_special_tokens=False)
        expected.append(Completion(text, answer, is_complete=END in found))
    assert Decoder(SMALL, rows=3).complete(prompts, 12) == expected
