from __future__ import annotations

from random import Random

import pytest

from backend.pico.adapters.behaviours.german import follows_form, rewrite
from backend.pico.tasks import FAMILIES


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "Die Antwort ist 42."),
        ("Yes", "Ja."),
        ("No", "Nein."),
        ("19 October", "Die Antwort ist 19. Oktober."),
        ("1 May 2027", "Die Antwort ist 1. Mai 2027."),
        ("Tuesday", "Die Antwort ist Dienstag."),
        ("3000 metres", "Die Antwort ist 3000 Meter."),
        ("3000 millimetres", "Die Antwort ist 3000 Millimeter."),
        ("South America", "Die Antwort ist Südamerika."),
        ("Nice to meet you, Sam.", "Freut mich, Sam."),
        ("Goodbye!", "Auf Wiedersehen!"),
    ],
)
def test_rewrite(answer: str, expected: str) -> None:
    assert rewrite(answer) == expected
    assert follows_form(expected)


@pytest.mark.parametrize(
    "text",
    ["42", "Yes", "Die Antwort ist 42", "Die Antwort ist .", "Die Antwort ist 19 October.", "Nein, 4."],
)
def test_other_forms_are_rejected(text: str) -> None:
    assert not follows_form(text)


@pytest.mark.parametrize("name", ["smalltalk", "out_of_scope"])
def test_every_fixed_sentence_is_translated(name: str) -> None:
    rng = Random(0)
    answers = {FAMILIES[name].generate(rng, tier).answer for tier in (1, 2, 3) for _ in range(150)}
    framed = {answer for answer in answers if rewrite(answer).startswith("Die Antwort ist")}
    assert framed <= {"pong"}
