from __future__ import annotations

import numpy as np

from guardrails.checks.personal_data.words import (
    NUM_FLAGS,
    NUM_SENTENCE_FEATURES,
    NUM_SUMMARY,
    digest_of,
    features_of,
    is_opaque,
    sentence_features,
    summary_of,
    words_of,
)


def forms(text: str, *opaque: tuple[int, int, str]) -> list[str]:
    return [word.form for word in words_of(text, 0, len(text), opaque)]


def test_words_numbers_and_signs() -> None:
    assert forms("Bob's O'Hara, 12b a6f9 x_1\n") == [
        "Bob", "'", "s", "O'Hara", ",", "12b", "a6f9", "x", "_", "1", "\n",
    ]  # fmt: skip
    assert forms("José lives.") == ["José", "lives", "."]


def test_personal_data_of_a_fixed_shape_is_one_word() -> None:
    words = words_of("to a@b.cd now", 0, 13, [(3, 9, "email")])
    assert [(word.start, word.end, word.form) for word in words] == [
        (0, 2, "to"), (3, 9, "[EMAIL]"), (10, 13, "now"),
    ]  # fmt: skip
    assert [is_opaque(word) for word in words] == [False, True, False] and forms("[") == ["["]


def test_features_have_their_sizes() -> None:
    for form in ("Bob", "12b", "é", "[EMAIL]", "\n", "a" * 500, "ß"):
        rows, _digest, flags = features_of(form, 100)
        assert rows and all(0 <= row < 100 for row in rows) and len(flags) == NUM_FLAGS
        assert len(summary_of(form)) == NUM_SUMMARY
    assert sentence_features(np.zeros((0, NUM_SUMMARY), np.float32)).tolist() == [1, 0, 0, 0]
    summaries = np.array([summary_of(form) for form in ("Ab", "c", "12", ".")], np.float32)
    assert sentence_features(summaries).tolist() == [0, 0.5, 0.25, 0.25]
    assert len(sentence_features(summaries)) == NUM_SENTENCE_FEATURES


def test_dictionaries_know_no_case_and_no_accents() -> None:
    assert digest_of("José") == digest_of("jose") != digest_of("josef")
