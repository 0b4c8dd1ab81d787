"""Labels and recorded prompts become outcomes for training."""

from __future__ import annotations

from router.log import Label, Record, outcomes_of


def record(number: str, prompt: str = "p") -> Record:
    return Record(facts={"request.has_tools": True}, version="v", id=number, prompt=prompt)


def test_prompts_with_scores_of_two_models() -> None:
    lines = [
        record("1", "first"),
        Label(label_of="1", scores={"small": 0.5, "large": 1.0}, kind="shadow"),
        Label(label_of="2", scores={"small": 0.0}),
        record("2", "second"),
        Label(label_of="2", scores={"large": 1.0}),
        record("3", "only one score"),
        Label(label_of="3", scores={"small": 1.0}),
        record("4", ""),
        Label(label_of="4", scores={"small": 0.0, "large": 1.0}),
        record("5", "first"),
        Label(label_of="5", scores={"small": 0.0, "large": 1.0}),
        Label(label_of="unknown", scores={"small": 0.0, "large": 1.0}),
    ]
    found = [*outcomes_of(lines)]
    assert [(each.prompt, dict(each.scores)) for each in found] == [
        ("first", {"small": 0.5, "large": 1.0}),
        ("second", {"small": 0.0, "large": 1.0}),
    ]
    assert all(each.has_tools and each.source == "log" for each in found)
