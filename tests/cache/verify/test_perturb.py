from __future__ import annotations

from random import Random

import pytest

from cache.verify import perturb
from cache.verify.features import NAMES, pair_features
from cache.verify.perturb import CHANGES, SAME, Corpus
from cache.verify.words import read

CORPUS = Corpus(names=["France", "Peru"], nouns=["window", "garden"])
TEXT = "Why do most people drive 12 km from Rome to Oslo and do not buy a flight in Norway or Peru?"


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        ("number", "numbers_differ"),
        ("negation", "negation_differs"),
        ("opposite", "opposite_words"),
        ("roles", "swapped_roles"),
        ("name", "names_differ"),
    ],
)
def test_changes_are_what_their_feature_sees(change: str, feature: str) -> None:
    changed = CHANGES[change][0](TEXT, Random(1), CORPUS)
    assert changed is not None
    values = pair_features(read(TEXT), read(changed), 0.9, lambda word: 0.5)
    assert values[NAMES.index(feature)] == 1, changed


def test_every_change_applies_somewhere_and_changes_the_text() -> None:
    for name, (change, _) in CHANGES.items():
        found = [change(TEXT, Random(seed), CORPUS) for seed in range(30)]
        assert any(found), name
        assert TEXT not in found, name
    for change in SAME:
        assert any(change(TEXT, Random(seed), CORPUS) not in (None, TEXT) for seed in range(30))


def test_pairs_are_reproducible_and_of_both_kinds() -> None:
    def made() -> list[tuple[str, str, bool, str] | None]:
        return [perturb.make_pair(TEXT, TEXT, random, CORPUS) for random in [Random(3)] for _ in range(60)]

    pairs = [pair for pair in made() if pair is not None]
    assert made() == made()
    assert {same for _, _, same, _ in pairs} == {True, False}
    assert all(a != b or kind == "date" for a, b, _, kind in pairs)
