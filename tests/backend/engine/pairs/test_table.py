from __future__ import annotations

from tests.backend.engine.pairs.table import DOCUMENT, written


def test_the_table_in_the_docs_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == written(text), "write it anew: python -m tests.backend.engine.pairs.table"
