"""Reasoning support of a checkpoint: the tags around its reasoning, and the switch in its chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.errors import TemplateError

OPEN_TAG = "<think>"
CLOSE_TAG = "</think>"
SWITCHES = ("enable_thinking", "thinking")
"""Template variables that switch reasoning: of Qwen3 and most others, and of DeepSeek-V3.1."""


@dataclass(frozen=True, slots=True)
class ThinkingMode:
    """How a chat template controls reasoning, detected by rendering it."""

    switches: tuple[str, ...] = ()  # the template variables that turn reasoning on and off
    is_default: bool = False  # the model reasons if no variable is set

    @property
    def can_think(self) -> bool:
        """True if the model reasons always or on request."""
        return self.is_default or bool(self.switches)

    def variables(self, thinks: bool) -> dict[str, bool]:
        """Return the template variables that switch reasoning on or off."""
        return dict.fromkeys(self.switches, thinks)


def thinking_mode(render: Callable[[dict[str, Any]], str], source: str) -> ThinkingMode:
    """Detect the mode of a template; `render` returns the prompt of a short chat with the given variables.

    A template with reasoning tags in its `source` but without a switch belongs to a model that always
    reasons.
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
