from __future__ import annotations

import gzip
import json
from pathlib import Path

from cache.verify.dataset import Pair, own_pairs, read_pairs

ROW = {"a": "one\u2028line", "b": "c", "same": True, "source": "s"}


def test_plain_and_gzip_files_are_split_at_newlines_only(tmp_path: Path) -> None:
    text = json.dumps(ROW, ensure_ascii=False) + "\n"
    (tmp_path / "plain").write_text(text, "utf-8")
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode()))
    expected = [Pair("one\u2028line", "c", True, "s")]
    assert read_pairs(tmp_path / "plain") == read_pairs(tmp_path / "packed") == expected


def test_own_pairs_are_reproducible() -> None:
    questions = [f"Why do people in India like number {n} so much?" for n in range(3, 30)]
    questions += ["Where in Peru is it?", "Where in Peru was it?", "How in Peru is it?"]
    words = [f"which garden windows are large {n}" for n in range(10)]
    public = [Pair(text, text, True, "qqp") for text in [*questions, *words]]
    made = own_pairs(public, 0, 40, 10)
    assert made == own_pairs(public, 0, 40, 10)
    assert len(made) == 50
    assert {pair.source.split("-")[0] for pair in made} == {"own"}
