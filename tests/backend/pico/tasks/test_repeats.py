"""Look-up steps end by repeating earlier text: a word, and what followed it."""

from __future__ import annotations

from random import Random

from backend.pico.tasks import FAMILIES, Instance
from backend.pico.tasks import reference_words as words


def draw(family: str, tier: int) -> list[Instance]:
    rng = Random(f"repeats:{family}:{tier}")
    return [FAMILIES[family].generate(rng, tier) for _ in range(300)]


def test_a_claim_is_true_where_the_same_words_were_followed_by_a_yes() -> None:
    verdicts = set()
    for instance in draw("facts", 3):
        if instance.key.startswith("true "):
            fact, claim = instance.thought.split("; ")
            known, said = fact.split(": ")[1].rsplit(" ", 1)
            assert said == "yes"
            claimed, verdict = claim.rsplit(" ", 1)
            assert claimed in instance.prompt and verdict == instance.answer.lower()
            assert (verdict == "yes") == (claimed == known)
            verdicts.add(verdict)
    assert verdicts == {"yes", "no"}


def test_a_cell_is_repeated_after_the_whole_row() -> None:
    found = 0
    for instance in draw("tables", 3):
        *read, last = instance.thought.split("; ")
        if ": " in instance.answer:
            found += 1
            name, answer = instance.answer.split(": ")
            assert f"name {name}" in read and last in read and last.endswith(f" {answer}")
            assert last.removesuffix(f" {answer}") in instance.prompt.replace(instance.key, "")
    assert found > 30


def test_a_neighbour_is_repeated_after_all_pairs() -> None:
    rng, sides = Random(3), set()
    for _ in range(100):
        found = words.neighbour_in_list(rng, 5)
        listed = found.context.turns[0].content.split(": ", 1)[1].split(", ")
        *pairs, last = found.thought.split("; ")
        side, known = found.key.split(" ")[:2]
        shift = 1 if side == "after" else -1
        assert found.answer == listed[listed.index(known) + shift]
        assert len(pairs) == 4 and last in pairs and last.split(" ")[1] == found.answer
        assert last[: len(known) + 1] == known + (">" if shift > 0 else "<")
        sides.add(side)
    assert sides == {"after", "before"}
