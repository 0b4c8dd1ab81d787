"""What a parser makes of a piece of text."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CallDelta:
    """A piece of one call; only the first of a call has `call_id` and `name`."""

    index: int  # among the calls of one choice
    arguments: str = ""  # JSON; all pieces of a call together are its arguments
    call_id: str = ""
    name: str = ""


@dataclass(slots=True)
class Parsed:
    """What may be shown now: text beside the calls, and pieces of calls."""

    text: str = ""
    calls: list[CallDelta] = field(default_factory=list)
