from __future__ import annotations

from guardrails.train.own import own_rows


def test_rows_are_reproducible_and_labelled() -> None:
    rows = own_rows()
    assert [row.text for row in rows[:500]] == [row.text for row in own_rows()[:500]]
    kinds = {row.kind for row in rows}
    assert kinds > {"override", "extraction", "jailbreak", "indirect", "benign", "benign_trigger", "hate"}
    assert all((row.labels and "{" not in row.text[:1]) or row.segment != "user" for row in rows)


def test_documents_come_as_twins() -> None:
    documents = [row for row in own_rows() if row.segment != "user"]
    clean, attacked = documents[::2], documents[1::2]
    assert all(not row.labels["indirect"] for row in clean)
    assert all(row.labels["indirect"] for row in attacked)
    assert all(one.text != other.text for one, other in zip(clean, attacked, strict=True))
