"""Reasoning support of a checkpoint: the tags around its reasoning, and the switch in its chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.errors import TemplateError

OPEN_TAG = "<think>"
CLOSE_TAG = "</think>"


@dataclass(frozen=True, slots=True)
class Tags:
    """What is around a model's reasoning."""

    opening: str
    closing: str
    tokens: tuple[str, ...] = ()  # further special tokens that tell reasoning from the answer
    answer: str = ""  # between the closing tag and the answer
    around_answer: tuple[str, str] = ("", "")  # tags of the answer, which is shown without them

    def shows(self, token: str) -> bool:
        """True for the text of a special token that is a tag, or a part of one."""
        parts = (self.opening, self.closing, *self.around_answer)
        return bool(token) and (token in self.tokens or any(token in part for part in parts))


THINK = Tags(OPEN_TAG, CLOSE_TAG)
HARMONY_TOKENS = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)
HARMONY = Tags(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    HARMONY_TOKENS,
    answer="<|start|>assistant<|channel|>final<|message|>",
)
"""Messages in channels, one of them for reasoning; not a pair of tags."""
KNOWN_TAGS = (
    HARMONY,
    Tags("<|channel>thought", "<channel|>"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("[THINK]", "[/THINK]"),
    Tags(OPEN_TAG, CLOSE_TAG, around_answer=("<answer>", "</answer>")),
    Tags(OPEN_TAG, CLOSE_TAG, around_answer=("<response>", "</response>")),
    THINK,
)
"""In the order in which they are looked for: the usual ones last."""
SWITCHES = ("enable_thinking", "thinking")
"""Template variables that switch reasoning: of Qwen3 and most others, and of DeepSeek-V3.1."""


@dataclass(frozen=True, slots=True)
class ThinkingMode:
    """How a chat template controls reasoning, detected by rendering it."""

    switches: tuple[str, ...] = ()  # the template variables that turn reasoning on and off
    is_default: bool = False  # the model reasons if no variable is set
    tags: Tags = THINK

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
    found = (
        each
        for each in KNOWN_TAGS
        if (each.opening in source or (each.closing in source and not each.tokens))
        and all(tag in source for tag in each.around_answer)
    )
    tags = next(found, None)
    if tags is None:
        return ThinkingMode()

    def rendered(**variables: bool) -> str | None:
        try:
            return render(variables)
        except TemplateError:
            return None

    switches = tuple(name for name in SWITCHES if rendered(**{name: True}) != rendered(**{name: False}))
    if not switches:
        return ThinkingMode(is_default=True, tags=tags)
    is_default = rendered() == rendered(**dict.fromkeys(switches, True))
    return ThinkingMode(switches, is_default=is_default, tags=tags)
