"""`penstock batch`: which files it takes. What it does with them is tested in tests/e2e/test_batches.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.run_batch import endpoint_of
from gateway.settings import SettingsError


def test_the_first_request_names_the_endpoint(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('\n{"url": "/v1/embeddings"}\n{"url": "/v1/responses"}\n')
    assert endpoint_of(source) == "/v1/embeddings"


@pytest.mark.parametrize("text", ["", "\n", "[]", "text", '{"url": "/v1/models"}', '{"url": 3}'])
def test_a_file_without_one_is_refused_with_an_example(tmp_path: Path, text: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(text)
    with pytest.raises(SettingsError, match=r"in\.jsonl has no url .*custom_id"):
        endpoint_of(source)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.jsonl cannot be read: No such file"):
        endpoint_of(tmp_path / "none.jsonl")
