from __future__ import annotations

from backend.pico.outcomes import MODELS, outcomes, questions


def test_both_models_answer_each_question_and_cost_something() -> None:
    asked = [each for each in questions(1, "validation", seed=3) if each.tier == 1][:8]
    rows = list(outcomes(asked, threads=1, seed=3))
    assert [row["task"] for row in rows] == [f"{each.family}-1" for each in asked]
    for row in rows:
        assert row["prompt"] and row["scores"].keys() == row["cost_usd"].keys() == MODELS.keys()
        assert row["answer_tokens"].keys() == row["kept"].keys() == MODELS.keys()
        assert row["answer_tokens"]["pico-large"] > row["answer_tokens"]["pico-small"] > 0
        assert row["cost_usd"]["pico-small"] < row["cost_usd"]["pico-large"]
    assert 0 < sum(row["kept"]["pico-small"] for row in rows) <= len(rows)
    assert sum(row["scores"]["pico-large"] for row in rows) >= len(rows) - 2
