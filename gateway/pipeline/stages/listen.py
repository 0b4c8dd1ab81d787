"""listen: hear the answer while it is sent, where a shadow's answer will be compared with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.answer import Delta, Following, Generated, Relayed
from gateway.exchange.exchange import Exchange, Stage
from gateway.providers.upstream.generated import in_deltas


class Listen(Stage):
    """The stage."""

    async def enter(self, exchange: Exchange) -> None:
        """The text will be the result of `exchange.sent_text`, when the answer has ended well."""
        answer = exchange.answer
        if exchange.sent_text is None or not isinstance(answer, Generated | Relayed):
            return
        neutral = in_deltas(answer)
        neutral.deltas = _Heard(exchange, neutral.deltas)
        exchange.answer = neutral


class _Heard(Following[Delta]):
    """The deltas as they are; keeps their text."""

    def __init__(self, exchange: Exchange, deltas: AsyncIterator[Delta]) -> None:
        super().__init__(deltas)
        self._exchange = exchange
        self._text: list[str] = []

    async def __anext__(self) -> Delta:
        try:
            delta = await super().__anext__()
        except StopAsyncIteration:
            future = self._exchange.sent_text
            if future is not None and not future.done():
                future.set_result("".join(self._text))
            raise
        self._text.append(delta.text)
        return delta
