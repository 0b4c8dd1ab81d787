"""The target as its own drafter is always right, a random one hardly ever; rounds are counted as defined."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from backend.pico import decoder
from backend.pico.conversations import messages_of
from backend.pico.decoder import Decoder
from backend.pico.drafters.acceptance import (
    CHAIN,
    TREE,
    Answered,
    Tally,
    follow,
    greedy_answers,
    measure,
    summaries,
    table,
)
from backend.pico.drafters.draft import DraftModel
from backend.pico.drafters.store import new_drafter
from backend.pico.drafters.target import Target
from backend.pico.tasks import FAMILIES


@pytest.fixture
def answered(
    target: Target, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Answered]:
    target.model.save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(decoder, "MAX_NEW_TOKENS", {False: 21, True: 21})  # not a multiple of a round
    rng, family = Random(0), FAMILIES["sorting"]
    asked = [
        messages_of(family.generate_in(rng, 3, "test"), thinking=thinking) for thinking in (False, True) * 3
    ]
    return greedy_answers(Decoder(tmp_path), asked)


def test_answers_are_the_targets_own(target: Target, answered: list[Answered]) -> None:
    assert {found.thinking for found in answered} == {True, False}
    for found in answered:
        choices = target.model(input_ids=torch.tensor([found.ids])).logits[0].argmax(-1).tolist()
        begin = found.written.index(True)
        assert all(found.written[begin:])
        assert found.ids[begin:] == choices[begin - 1 : -1]


def test_the_target_accepts_all_of_its_own_and_hardly_any_random_drafts(
    target: Target, answered: list[Answered]
) -> None:
    drafters = {"perfect": DraftModel(target.model), "random": new_drafter("eagle", target, 1)}
    tallies = measure(target, drafters, answered)
    perfect, random = (tallies[name]["all"][CHAIN] for name in drafters)
    assert perfect.conditional == perfect.cumulative == [1.0] * 5
    assert 5 < perfect.mean_accepted_length < 6  # below 6 because of the answers' last rounds
    assert random.conditional[0] < 0.1
    assert random.mean_accepted_length < 1.1
    split = [tallies["random"][group][CHAIN].rounds for group in ("direct", "thinking")]
    assert sum(split) == random.rounds
    assert min(split) > 0
    assert "| perfect | chain | all | 100.0 / 100.0 |" in table(tallies)
    assert summaries(tallies)["perfect"]["all"][TREE]["conditional"] == [1.0] * 5


def test_rounds_follow_each_other_along_the_answer() -> None:
    # The prompt is 0..2, the answer 3..9; a round from start t drafts tokens t + 2, t + 3.
    right = torch.zeros(10, 2, dtype=torch.bool)
    right[2] = torch.tensor([True, False])  # accepts token 4; the target adds 5
    right[4] = torch.tensor([False, True])  # accepts nothing, since the first is wrong; the target adds 6
    right[5] = torch.tensor([True, True])  # accepts 7 and 8; the target adds 9, the end of the answer
    tally = Tally()
    follow(tally, right, Answered(list(range(10)), [False] * 3 + [True] * 7, thinking=False))
    assert (tally.rounds, tally.reached, tally.tried, tally.accepted) == (3, [3, 3], [3, 2], [2, 1])
    assert tally.mean_accepted_length == 2.0
    assert tally.conditional == pytest.approx([2 / 3, 1 / 2])
    assert tally.cumulative == pytest.approx([2 / 3, 1 / 3])


def test_drafts_past_the_end_are_not_counted() -> None:
    tally = Tally()
    follow(
        tally, torch.ones(4, 3, dtype=torch.bool), Answered([0, 1, 2, 3], [False, True, True, True], False)
    )
    assert (tally.rounds, tally.reached, tally.accepted) == (1, [1, 1], [1, 1])
