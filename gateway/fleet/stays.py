"""Which target has answered a conversation, and so may hold its beginning in a cache."""

from __future__ import annotations

from collections import OrderedDict

MAX_CONVERSATIONS = 20_000


class Stays:
    """Bounded: the conversations that were continued longest ago are forgotten first."""

    def __init__(self) -> None:
        self._targets: OrderedDict[bytes, str] = OrderedDict()

    def target_of(self, conversation: bytes) -> str:
        """The target's place; "" where it is not known."""
        return self._targets.get(conversation, "")

    def remember(self, conversation: bytes, place: str) -> None:
        """The target at this place has answered."""
        if not conversation:
            return
        self._targets[conversation] = place
        self._targets.move_to_end(conversation)
        if len(self._targets) > MAX_CONVERSATIONS:
            self._targets.popitem(last=False)
