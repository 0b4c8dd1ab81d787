"""POST /v1/messages and /v1/messages/count_tokens, on top of chat."""

from __future__ import annotations

from typing import Any

from gateway.answer import Generated
from gateway.anthropic.request import (
    chat_names,
    check_version,
    read_count_request,
    read_messages_request,
)
from gateway.anthropic.shape import MessageShape
from gateway.auth import Principal
from gateway.exchange.exchange import Exchange
from gateway.exchange.translation import Translation
from gateway.web.error_format import RenamedErrors
from gateway.web.http_call import HttpCall, header


class MessagesTranslation(Translation):
    """One call of /v1/messages."""

    def __init__(self, call: HttpCall, *, drops_hosted: bool = False) -> None:
        """Raises InvalidRequest for an unknown `anthropic-version`. `drops_hosted`: see `chat_tools`."""
        check_version(header(call.scope, b"anthropic-version").decode("latin-1"))
        self._call = call
        self._drops_hosted = drops_hosted
        self._shows_thinking = False
        self._max_tokens = 0

    async def to_chat(self, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
        """The chat that answers the message; notes which fields it came from."""
        read = read_messages_request(body, drops_hosted=self._drops_hosted)
        chat, self._shows_thinking, self.ignored_fields = read
        self._max_tokens = chat["max_completion_tokens"]
        self.names = chat_names(body, chat)
        self._call.error_format = RenamedErrors(self._call.error_format, self.names)
        return chat

    def shape(self, exchange: Exchange, answer: Generated) -> MessageShape:
        """Encodes the answer as a message."""
        shows_thinking = self._shows_thinking and answer.shows_reasoning
        return MessageShape(
            exchange.chosen_model.name,
            answer.usage,
            shows_thinking=shows_thinking,
            max_tokens=self._max_tokens,
        )


class MessagesCounting:
    """One call of /v1/messages/count_tokens. Implements `gateway.endpoints.spec.Counting`."""

    def __init__(self, call: HttpCall, *, drops_hosted: bool = False) -> None:
        """Raises InvalidRequest for an unknown `anthropic-version`. `drops_hosted`: see `chat_tools`."""
        check_version(header(call.scope, b"anthropic-version").decode("latin-1"))
        self._call = call
        self._drops_hosted = drops_hosted

    async def to_chat(self, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
        """The chat whose tokens are counted."""
        chat = read_count_request(body, drops_hosted=self._drops_hosted)
        self._call.error_format = RenamedErrors(self._call.error_format, chat_names(body, chat))
        return chat

    def counted(self, num_tokens: int) -> dict[str, Any]:
        """The body that tells the number of tokens."""
        return {"input_tokens": num_tokens}
