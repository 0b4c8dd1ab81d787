"""How a checkpoint thinks aloud: the tags around a thought, and the switch in its chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.errors import TemplateError

OPEN_TAG = "<think>"
CLOSE_TAG = "</think>"
SWITCHES = ("enable_thinking", "thinking")
"""Template variables that models call it by: Qwen3 and most others; DeepSeek-V3.1."""


@dataclass(frozen=True, slots=True)
class ThinkingMode:
    """What a chat template can do about thinking, found by rendering it."""

    switches: tuple[str, ...] = ()  # the variables that turn it on and off
    is_default: bool = False  # the model thinks when nobody asks for anything

    @property
    def can_think(self) -> bool:
        """True when the model thinks at least sometimes."""
        return self.is_default or bool(self.switches)

    def variables(self, thinks: bool) -> dict[str, bool]:
        """What to give the template."""
        return dict.fromkeys(self.switches, thinks)


def thinking_mode(render: Callable[[dict[str, Any]], str], source: str) -> ThinkingMode:
    """The mode of a template with this `source`; `render` gives a short chat's prompt with these variables.

    A template that writes thoughts but has no switch belongs to a model that always thinks.
    """
    if CLOSE_TAG not in source and OPEN_TAG not in source:
        return ThinkingMode()

    def rendered(**variables: bool) -> str | None:
        try:
            return render(variables)
        except TemplateError:
            return None

    switches = tuple(name for name in SWITCHES if rendered(**{name: True}) != rendered(**{name: False}))
    if not switches:
        return ThinkingMode(is_default=True)
    return ThinkingMode(switches, is_default=rendered() == rendered(**dict.fromkeys(switches, True)))
