from __future__ import annotations

import numpy as np

from cache.verify.vocabulary import Vocabulary

PIECES = ["[UNK]", "flight", "##s", "rain", "##bow", "r", "##a"]
TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)
WORDS = Vocabulary(PIECES, TABLE, np.array([0, 0.2, 0, 0.5, 0, 0, 0], np.float32))


def test_known_words_have_their_row_and_others_the_mean_of_their_longest_pieces() -> None:
    assert WORDS.rows("flight") == (1,)
    assert WORDS.rows("rainbows") == (3, 4, 2)
    assert WORDS.vectors(["flight", "rainbow"]).tolist() == [[2, 3], [7, 8]]


def test_what_has_no_piece_is_unknown() -> None:
    assert WORDS.rows("日本") == (0,)
    assert WORDS.rows("flightx") == (1,)
    assert WORDS.vectors([]).tolist() == [[0, 0]]


def test_the_table_is_not_changed() -> None:
    WORDS.vectors(["rainbow", "rain"])
    assert TABLE.tolist() == np.arange(14, dtype=np.float32).reshape(7, 2).tolist()


def test_unknown_words_are_rare() -> None:
    assert WORDS.idf("rain") == 0.5
    assert WORDS.idf("zebra") == 0.5
