from __future__ import annotations

import pytest

from backend.pico.adapters.behaviours.si_units import follows_form, rewrite


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("250 cm", "2.5 metres (SI)"),
        ("100 centimetres", "1 metre (SI)"),
        ("70000 milliseconds", "70 seconds (SI)"),
        ("4442 kilograms", "4442 kilograms (SI)"),
        ("1 tonne", "1000 kilograms (SI)"),
        ("5 ml", "0.000005 cubic metres (SI)"),
        ("2 min", "120 seconds (SI)"),
        ("4.2 km", "4200 metres (SI)"),
    ],
)
def test_quantities(answer: str, expected: str) -> None:
    assert rewrite(answer) == expected
    assert follows_form(expected)


@pytest.mark.parametrize("answer", ["42", "12 euros", "300 cents", "3 apples", "24 months", "2 m of it"])
def test_anything_else_stays(answer: str) -> None:
    assert rewrite(answer) == answer
    assert not follows_form(answer)


@pytest.mark.parametrize("text", ["250 cm (SI)", "2.5 metres", "metres (SI)", "2.5 metres (SI) or 250 cm"])
def test_other_forms_are_rejected(text: str) -> None:
    assert not follows_form(text)
