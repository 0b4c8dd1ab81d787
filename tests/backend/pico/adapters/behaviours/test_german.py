from __future__ import annotations

from random import Random

import pytest

from backend.pico.adapters.behaviours.german import follows_form, rewrite
from backend.pico.tasks import FAMILIES


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "42 ist die Antwort."),
        ("Yes", "Ja."),
        ("No", "Nein."),
        ("19 October", "19. Oktober ist die Antwort."),
        ("1 May 2027", "1. Mai 2027 ist die Antwort."),
        ("Tuesday", "Dienstag ist die Antwort."),
        ("3000 metres", "3000 Meter ist die Antwort."),
        ("3000 millimetres", "3000 Millimeter ist die Antwort."),
        ("South America", "Südamerika ist die Antwort."),
        ("Nice to meet you, Sam.", "Freut mich, Sam."),
        ("Goodbye!", "Auf Wiedersehen!"),
    ],
)
def test_rewrite(answer: str, expected: str) -> None:
    assert rewrite(answer) == expected
    assert follows_form(expected)


@pytest.mark.parametrize(
    "text",
    ["42", "Yes", "42 ist die Antwort", " ist die Antwort.", "19 October ist die Antwort.", "Nein, 4."],
)
def test_other_forms_are_rejected(text: str) -> None:
    assert not follows_form(text)


@pytest.mark.parametrize("name", ["smalltalk", "out_of_scope"])
def test_every_fixed_sentence_is_translated(name: str) -> None:
    rng = Random(0)
    answers = {FAMILIES[name].generate(rng, tier).answer for tier in (1, 2, 3) for _ in range(150)}
    framed = {answer for answer in answers if rewrite(answer).endswith("ist die Antwort.")}
    assert framed <= {"pong"}
