"""The request of /v1/rerank, as in the APIs of Cohere and Jina, and what an encoder does with its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.requests.field_support import HONOURED, Rule, check_supported
from gateway.requests.parse import typed_at
from gateway.requests.refusals import wrong_value
from gateway.requests.types import ModelRequest, TextsOrTokens
from gateway.requests.unknown_fields import collecting, names
from policies.document import UnknownFields

MAX_DOCUMENTS = 1000
"""The most that one request may have, as in the API of Cohere."""

RERANK: Mapping[str, Rule] = {
    "model": HONOURED,
    "query": HONOURED,
    "documents": Rule("honoured", "texts, or objects with a `text`"),
    "top_n": Rule("honoured", "more than there are documents: all"),
    "return_documents": Rule("honoured", "default: true, as in the APIs of Jina and vLLM"),
    "user": Rule("accepted", "checked; the principal comes from the API key"),
    "rank_fields": Rule("refused", "only the field `text` of a document is read", (["text"],)),
    "max_chunks_per_doc": Rule("refused", "documents are not cut: split them"),
    "max_tokens_per_doc": Rule("refused", "documents are not cut: split them"),
    "return_embeddings": Rule("refused", "embeddings in the answer", (False,)),
}
"""The fields with an encoder; upstreams get every field."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document that is an object."""

    text: str


class RerankRequest(ModelRequest, frozen=True, kw_only=True):
    """POST /v1/rerank."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    user: str | None = None

    @property
    def inputs(self) -> TextsOrTokens:
        """The query and the documents."""
        return [self.query, *(text_of(each) for each in self.documents)]


def text_of(document: str | Mapping[str, Any]) -> str:
    """The text that is ranked; "" for an object without one."""
    found = document if isinstance(document, str) else document.get("text")
    return found if isinstance(found, str) else ""


def check_fields(
    request: RerankRequest, body: Mapping[str, Any], model: str, unknown: UnknownFields | None
) -> list[str]:
    """The names of the fields without effect. Raises InvalidRequest for what an encoder cannot do."""
    ignored = dict.fromkeys(check_supported(body, RERANK, model, unknown))
    for number, document in enumerate(request.documents):
        where = f"documents[{number}]"
        with collecting() as found:
            text = document if isinstance(document, str) else typed_at(document, Document, where).text
        if found and unknown != "ignore":
            raise found[0]
        if not text:
            raise wrong_value(where, "it is empty: give at least one character, or leave it out")
        ignored |= dict.fromkeys(names(found))
    return list(ignored)
