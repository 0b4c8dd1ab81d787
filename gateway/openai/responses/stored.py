"""GET and DELETE /v1/responses/{id}, its input items, and cancel."""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.openai.objects_endpoint import ObjectsEndpoint, respond_page
from gateway.requests import refusals
from gateway.requests.pages import PageQuery
from gateway.web.http_call import HttpCall


class StoredResponsesEndpoint(ObjectsEndpoint):
    """What a tenant may do with its stored responses."""

    kind = "response"
    deleted = "response"

    async def show(self, call: HttpCall) -> None:
        """The response, as it was answered. Raises NotFound."""
        if call.query.get("stream", "false") != "false":
            raise refusals.unsupported("stream", "a stored response cannot be streamed again")
        await super().show(call)

    async def cancel(self, call: HttpCall) -> None:
        """Refuse: only responses that are generated in the background can be cancelled. Raises ApiError."""
        await self.stored(call)
        raise InvalidRequest("Only responses in the background can be cancelled; this one is complete.")

    async def list_items(self, call: HttpCall) -> None:
        """A page of the input: `limit`, `order` (default: desc), `after` an item's id. Raises ApiError."""
        query = PageQuery.read(call.query)
        await respond_page(call, query, (await self.stored(call)).items)
