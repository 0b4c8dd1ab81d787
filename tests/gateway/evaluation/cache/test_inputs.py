from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import pytest

from gateway.evaluation.cache.inputs import CachePlan, add_flags, read_plan
from gateway.settings import SettingsError

PAIR = '{"a": "x", "b": "y", "same": true, "source": "s"}\n'
QUESTION = '{"query": "x\u2028y", "answer_id": "1"}\n'


def read(*arguments: str) -> CachePlan:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return read_plan(parser.parse_args(arguments))


def test_plain_and_gzip_files(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text(PAIR, "utf-8")
    (tmp_path / "stream").write_bytes(gzip.compress(QUESTION.encode() * 2))
    plan = read("--pairs", str(tmp_path / "pairs"), "--stream", str(tmp_path / "stream"))
    assert [row.source for rows in plan.pairs.values() for row in rows] == ["s"]
    assert [row.query for rows in plan.streams.values() for row in rows] == ["x\u2028y"] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows"),
        (PAIR + "{", "line 2"),
        ('{"a": "x", "b": "y"}', "line 1: .*same"),
        ('{"a": "x", "b": "y", "same": "yes"}', "line 1: .*bool"),
        ('{"a": " ", "b": "y", "same": true}', "row 1 has an empty question"),
    ],
)
def test_unusable_files_are_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "pairs"
    path.write_text(content, "utf-8")
    with pytest.raises(SettingsError, match=message):
        read("--pairs", str(path))


def test_errors_quote_no_question(tmp_path: Path) -> None:
    path = tmp_path / "pairs"
    path.write_text('{"a": "my secret", "b": 5, "same": true}', "utf-8")
    with pytest.raises(SettingsError) as caught:
        read("--pairs", str(path))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--pairs FILE or --stream FILE"),
        (["--pairs", "/no/file"], "cannot be read"),
        (["--pairs", "/no/file", "--max-false-share", "1"], "--max-false-share"),
        (["--pairs", "/no/file", "--threads", "0"], "--threads"),
        (["--pairs", "/no/file", "--json", "/no/folder/x"], "--json"),
    ],
)
def test_flags_are_validated(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read(*arguments)
