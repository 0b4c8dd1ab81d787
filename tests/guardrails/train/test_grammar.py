from __future__ import annotations

from pathlib import Path
from random import Random

from guardrails.train.grammar import Grammar
from guardrails.train.own import read_grammar


def make(tmp_path: Path, text: str) -> Grammar:
    path = tmp_path / "a.txt"
    path.write_text(text)
    return Grammar([path])


def test_slots_choices_and_lines(tmp_path: Path) -> None:
    grammar = make(
        tmp_path, "# a comment\nfood = soup | [[red|green]] salad\n\n[meals]\nI eat {food}\\n[[now|]]\n"
    )
    found = set(grammar.texts(Random(0), "meals", 50))
    foods = ("soup", "red salad", "green salad")
    assert found == {f"I eat {food}\n{when}" for food in foods for when in ("now", "")}


def test_a_name_is_the_same_all_through_a_text(tmp_path: Path) -> None:
    grammar = make(tmp_path, "persona = A | B | C\n[talk]\n{persona} {persona} {persona}\n")
    assert set(grammar.texts(Random(0), "talk", 20)) == {"A A A", "B B B", "C C C"}


def test_every_slot_is_defined() -> None:
    grammar = read_grammar()
    for section in grammar.sections:
        for template in grammar.sections[section]:
            text = grammar.expand(Random(0), template)
            assert "[[" not in text and "]]" not in text, template
