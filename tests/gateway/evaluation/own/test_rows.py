"""Files of own questions: each mistake with its line, and never the text of a question."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gateway.evaluation.own.rows import MAX_SHOWN, read_data
from gateway.settings import SettingsError


def test_rows_become_questions(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a?", "expected": "x"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "b?"}],
         "grader": "numeric", "expected": 4, "tolerance": 1, "group": "maths", "id": 7},
        {"prompt": "c?", "grader": "judge", "rubric": "polite"},
        {"prompt": "d?", "expected": ["x", "y"], "ignore_case": True},
    ]  # fmt: skip
    lines = "\ufeff" + "\n\n".join(map(json.dumps, rows)) + "\r\n"
    (tmp_path / "a.jsonl").write_bytes(lines.encode())
    (tmp_path / "b.gz").write_bytes(gzip.compress(lines.encode()))
    data = read_data([tmp_path / "a.jsonl"], "exact", None)
    assert [each.family for each in data.questions] == ["exact", "maths", "judge", "exact"]
    assert [each.prompt for each in data.questions] == ["a?", "b?", "c?", "d?"]
    assert data.questions[1].id == "7" and data.questions[0].id.endswith("a.jsonl:1")
    assert data.needs_judge
    assert read_data([tmp_path / "b.gz"], "exact", 1).sha256 == data.sha256
    assert len(read_data([tmp_path / "b.gz"], "exact", 1).questions) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "SECRET"', "JSON|truncated"),
        (b"[" * 100_000, ":2: "),
        (b'"a text"', "Expected `object`"),
        (b'{"prompt": "\xff", "expected": "x"}', "UTF-8"),
        (b'{"prompt": "SECRET"}', "`expected` is missing"),
        (b'{"promt": "SECRET", "expected": "x"}', "unknown key 'promt'; did you mean 'prompt'?"),
        (b'{"prompt": 1, "expected": "x"}', r"Expected `str`, got `int` - at `\$.prompt`"),
        (b'{"prompt": " ", "expected": "x"}', "`prompt` is empty"),
        (b'{"expected": "x"}', "either `prompt`"),
        (b'{"prompt": "SECRET", "messages": [], "expected": "x"}', "either `prompt`"),
        (b'{"messages": [], "expected": "x"}', "at least one"),
        (b'{"messages": [{"content": "SECRET"}], "expected": "x"}', "`role`"),
        (b'{"prompt": "SECRET", "expected": "x", "grader": "SECRET"}', "none of exact, regex, json"),
        (b'{"prompt": "SECRET", "expected": 4}', "numbers have numeric"),
        (b'{"prompt": "SECRET", "expected": []}', "a list of texts"),
        (b'{"prompt": "SECRET", "expected": "4", "grader": "numeric"}', "must be a number"),
        (b'{"prompt": "SECRET", "expected": true, "grader": "numeric"}', "must be a number"),
        (b'{"prompt": "SECRET", "expected": 1, "grader": "numeric", "tolerance": -1}', "0 or more"),
        (b'{"prompt": "SECRET", "expected": "(SECRET", "grader": "regex"}', "no RE2 expression"),
        (b'{"prompt": "SECRET", "expected": 3, "grader": "regex"}', "must be an expression"),
        (b'{"prompt": "SECRET", "grader": "judge"}', "a right answer, or `rubric`"),
        (b'{"prompt": "SECRET", "expected": "x", "tolerance": 1}', "`tolerance` is for the grader numeric"),
        (b'{"prompt": "SECRET", "expected": "x", "id": 1}', "that of another line"),
    ],
)
def test_mistakes(line: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"prompt": "a?", "expected": "x", "id": "1"}\n' + line + b"\n")
    with pytest.raises(SettingsError, match=words) as raised:
        read_data([path], "exact", None)
    said = str(raised.value)
    assert "own.jsonl:2: " in said and "SECRET" not in said and said.count("\n") == 1


def test_all_mistakes_at_once_up_to_a_number(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("{}\n" * (MAX_SHOWN + 5))
    with pytest.raises(SettingsError) as raised:
        read_data([path], "exact", None)
    assert str(raised.value).count("\n") == MAX_SHOWN + 1 and str(raised.value).endswith("and 5 more")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    for name, words in (
        ("empty", "no questions"),
        ("half.gz", "gzip"),
        ("none", "No such file"),
        (".", "directory"),
    ):
        with pytest.raises(SettingsError, match=words):
            read_data([tmp_path / name], "exact", None)
