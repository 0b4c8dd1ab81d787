from __future__ import annotations

import pytest

from gateway.endpoints.rerank.request import RERANK, RerankRequest, check_fields, text_of
from gateway.errors import InvalidRequest


def test_every_field_has_a_rule() -> None:
    assert set(RerankRequest.__struct_fields__) <= set(RERANK)


def test_estimates_count_the_query_and_the_documents() -> None:
    request = RerankRequest(model="m", query="q", documents=["a", {"text": "b"}, {"title": "c"}])
    assert request.inputs == ["q", "a", "b", ""]


@pytest.mark.parametrize(
    ("document", "text"), [("a", "a"), ({"text": "b"}, "b"), ({}, ""), ({"text": 5}, "")]
)
def test_the_text_of_a_document(document: str | dict[str, object], text: str) -> None:
    assert text_of(document) == text


def test_names_of_ignored_fields_come_once() -> None:
    documents: list[str | dict[str, object]] = [{"text": "a", "id": 1}, {"text": "b", "id": 2, "n": 3}]
    request = RerankRequest(model="m", query="q", documents=documents)
    body = {"model": "m", "query": "q", "documents": documents, "zz": 1}
    assert check_fields(request, body, "m", "ignore") == ["zz", "documents.id", "documents.n"]
    with pytest.raises(InvalidRequest, match="zz"):
        check_fields(request, body, "m", None)
