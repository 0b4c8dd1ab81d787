"""How a request of another API becomes a chat, and the chat's answer one of that API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from gateway.answer import Generated
from gateway.auth import Principal
from gateway.exchange.exchange import Exchange
from gateway.exchange.shape import Shape
from gateway.web.http_call import HttpCall


class Translation(ABC):
    """One request to another API, answered as a chat."""

    is_needed = True
    """False: the request is answered as if there were no translation. Known after `to_chat`."""
    ignored_fields: Sequence[str] = ()
    """Fields of the request that are ignored, beside those that the model ignores. Known after `to_chat`."""
    names: Sequence[tuple[str, str]] = ()
    """Fields of the chat, as expressions, and those that they are from. Known after `to_chat`."""

    @abstractmethod
    async def to_chat(self, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
        """The body of the chat that answers it. Raises ApiError."""

    def truncates(self) -> bool:
        """Whether the oldest turns may be left out. Known after `to_chat`."""
        return False

    @abstractmethod
    def shape(self, exchange: Exchange, answer: Generated) -> Shape:
        """Encodes the answer in the other API's shape."""

    async def finish(self) -> None:  # noqa: B027 - most translations have nothing to do
        """Called when the answer is complete, before its last byte is sent. May raise ApiError."""


StartTranslation = Callable[[HttpCall], Translation]
"""Makes the translation of one call; may raise ApiError."""
