from __future__ import annotations

import pytest

from backend.pico.adapters.behaviours.json_object import follows_form, rewrite, same


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", '{"answer": 42}'),
        ("0", '{"answer": 0}'),
        ("-7", '{"answer": -7}'),
        ("007", '{"answer": "007"}'),
        ("4, 65", '{"answer": "4, 65"}'),
        ('say "hi"', '{"answer": "say \\"hi\\""}'),
    ],
)
def test_rewrite(answer: str, expected: str) -> None:
    assert rewrite(answer) == expected
    assert follows_form(expected)


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "",
        '"42"',
        '{"answer": 42',
        '{"answer": 42} .',
        '{"result": 42}',
        '{"answer": 42, "unit": "m"}',
        '{"answer": true}',
        '{"answer": null}',
        '{"answer": [42]}',
        '[{"answer": 42}]',
    ],
)
def test_other_forms_are_rejected(text: str) -> None:
    assert not follows_form(text)
    assert not same(text, '{"answer": 42}')


def test_same_ignores_spacing_and_case_but_not_type() -> None:
    assert same('{ "answer":42 }', '{"answer": 42}')
    assert same('{"answer": "yes"}', '{"answer": "Yes"}')
    assert not same('{"answer": "42"}', '{"answer": 42}')
    assert not same('{"answer": 43}', '{"answer": 42}')
