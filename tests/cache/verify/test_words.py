from __future__ import annotations

import pytest

from cache.verify.words import MAX_CHARS, read


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2k, 2,000 and two thousand", ("2000", "2000", "2000")),
        ("twenty five or 25", ("25", "25")),
        ("a hundred thousand people", ("100000",)),
        ("1.50 and 007", ("1.5", "7")),
        ("on the 3rd of March 2020, or Mar 3", ("2020", "3", "3", "march", "march")),
        ("which one do you like?", ()),
        ("one million", ("1000000",)),
        ("version 1.2.3", ("1.2.3",)),
    ],
)
def test_numbers_in_all_spellings(text: str, numbers: tuple[str, ...]) -> None:
    assert read(text).numbers == numbers


def test_contractions_and_apostrophes_are_expanded() -> None:
    expected = ("i", "can", "not", "do", "it")
    assert (
        read("I can't do it").words
        == read("i cannot do it.").words
        == read("I can’t do it!").words
        == expected
    )
    assert read("John's car").words == ("john", "car")
    assert read("O'Neil").words == ("oneil",)


def test_negations_are_counted() -> None:
    assert [read(text).num_negations for text in ("I don't know", "never without it", "now")] == [1, 2, 0]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("How many people?", "quantity"),
        ("How do I sleep?", "how"),
        ("In Paris, who sings?", "who"),
        ("Is it true?", "yes-no"),
        ("Write a poem", ""),
    ],
)
def test_kind_of_question(text: str, asks: str) -> None:
    assert read(text).asks == asks


def test_names_do_not_depend_on_the_first_word() -> None:
    assert read("Where is Paris in France?").names == {"paris", "france"}
    assert read("PLEASE SHOUT LESS").names == frozenset()


def test_accents_do_not_matter_and_odd_input_is_read() -> None:
    assert read("café in Düsseldorf").words == read("cafe in Dusseldorf").words
    for text in ("", " ", "?!", "\u2028", "日本語", "😀 ok", "'", "a" * 100_000, "1" * 5_000, "1,2," * 900):
        assert len(" ".join(read(text).words)) <= 2 * MAX_CHARS
