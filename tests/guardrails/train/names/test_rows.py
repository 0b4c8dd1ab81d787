from __future__ import annotations

import gzip
import json
from pathlib import Path

from guardrails.checks.personal_data.names import TAGS
from guardrails.train.names.rows import FILES, Row, read_rows, sentences_of


def test_words_get_the_tags_of_their_spans() -> None:
    text = "Mr. Bob Ray, a@b.cd, left.\nOslo 0150"
    spans = [
        (0, 3, "TITLE"),
        (4, 11, "PERSON"),
        (13, 19, "EMAIL_ADDRESS"),
        (27, 31, "LOCATION"),
        (32, 36, "ZIP_CODE"),
    ]
    first, second = sentences_of([Row(text, spans, "x")])
    assert [(word.form, TAGS[tag]) for word, tag in zip(first.words, first.tags, strict=True)] == [
        ("Mr", ""), (".", ""), ("Bob", "person"), ("Ray", "person"), (",", ""), ("[EMAIL]", ""), (",", ""),
        ("left", ""), (".", ""), ("\n", ""),
    ]  # fmt: skip
    own = [tag for tag in second.tags if tag >= 0]
    assert [TAGS[tag] for tag in own] == ["location", "address"]
    assert second.tags[: -len(own)] == [-1] * (len(second.words) - 2)  # the line before


def test_rows_of_the_files(tmp_path: Path) -> None:
    for number, name in enumerate(FILES):
        row = {"text": f"Bob {number}", "spans": [{"start": 0, "end": 3, "type": "PERSON"}], "source": "s"}
        (tmp_path / name).write_bytes(gzip.compress(json.dumps(row).encode()))
    assert list(read_rows(tmp_path)) == [Row(f"Bob {n}", [(0, 3, "PERSON")], "s") for n in range(2)]
    assert len(list(read_rows(tmp_path, only_train=True))) == 1
