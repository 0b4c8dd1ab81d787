"""Prompts for calibration: text and JSON lines; what is wrong is named by its line and never quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from backend.quant import prompts
from backend.quant.prompts import read_prompts
from backend.tokenizer import Tokenizer

PICO = Path(prompts.__file__).parents[1] / "pico" / "weights" / "pico-small"


def read(tmp_path: Path, content: str | bytes, name: str = "p.jsonl", most: int = 2048) -> list[list[int]]:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_prompts(path, PICO, most)


def test_lines(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_checkpoint(PICO)
    messages = '{"messages": [{"role": "user", "content": "How much is 3 + 4?"}]}'
    content = f'"one\u2028two"\r\n\n{{"prompt": "three"}}\n{{"text": "four", "id": 1}}\n{messages}\n'
    found = [tokenizer.decode(tokens, skip_special_tokens=False) for tokens in read(tmp_path, content)]
    assert found[:3] == ["one\u2028two", "three", "four"]
    assert "How much is 3 + 4?" in found[3] and found[3] != "How much is 3 + 4?"


def test_a_text_is_cut_into_pieces(tmp_path: Path) -> None:
    text = "word " * 900
    pieces = read(tmp_path, text, "p.txt")
    assert max(map(len, pieces)) == 512
    assert [token for piece in pieces for token in piece] == Tokenizer.from_checkpoint(PICO).encode(text)
    assert max(map(len, read(tmp_path, text, "p.txt", most=100))) == 100


def test_only_so_much_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_MOST_TOKENS", 20)
    assert sum(map(len, read(tmp_path, '"one two three"\n' * 50))) == 20
    assert sum(map(len, read(tmp_path, "one two three " * 50, "p.txt"))) == 20


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
def test_what_does_not_count_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A log of many gigabytes takes no memory."""
    monkeypatch.setattr(prompts, "_MOST_TOKENS", 20)
    monkeypatch.setattr(prompts, "_MOST_CHARS", 1000)
    found = read(tmp_path, b'"one two three"\n' * 100_000 + b"\xff", name)
    assert sum(map(len, found)) == 20


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, '\ufeff"one"\n', name) == read(tmp_path, '"one"\n', name)


@pytest.mark.parametrize(
    "line",
    [
        "secret",
        '{"prompt": 1, "secret": 2}',
        '["secret"]',
        '{"messages": ["secret"]}',
        '{"messages": []}',
        '"secret \\ud800"',
        "[" * 100_000 + "secret",
    ],
)
def test_a_wrong_line_is_named_and_not_quoted(tmp_path: Path, line: str) -> None:
    with pytest.raises(CheckpointError, match=r"p\.jsonl, line 2: expected") as caught:
        read(tmp_path, f'"good"\n{line}\n')
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("content", ["", "\n\n", '""'])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(CheckpointError, match="holds no prompt"):
        read(tmp_path, content)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"p\.txt cannot be read as UTF-8 \(UnicodeDecodeError\)"):
        read(tmp_path, b"secret \xff", "p.txt")
    with pytest.raises(CheckpointError, match="none cannot be read"):
        read_prompts(tmp_path / "none", PICO, 100)
