"""Splits a model's text into reasoning and answer while it streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from backend.tokenizer.thinking import THINK, Tags
from gateway.tool_calls.call_syntax import overlap

Phase = Literal["start", "reasoning", "gap", "text", "answer"]
""""text": of the answer, whose end is looked for; "answer": all that follows is the answer."""

MAX_CALL_CHARS = 1 << 16
"""Reasoning is held back from the mark of a call on, up to this length."""
MAX_LEADING_NEWLINES = 16
"""Newlines allowed before the opening tag; a text with more of them is an answer."""


class ReasoningSplitter:
    """`<think>reasoning</think>answer` in any pieces; neither part keeps the newlines next to the tags.

    The answer may have tags as well.

    Only a text that begins with the opening tag (or `begins_inside`, when the prompt ended with the tag) has
    reasoning: tags inside of an answer are the answer's. The result does not depend on how the text is cut.
    """

    __slots__ = (
        "_begins_inside",
        "_has_text",
        "_held",
        "_marks",
        "_num_newlines",
        "_tags",
        "has_reasoning",
        "phase",
    )

    def __init__(self, *, begins_inside: bool, tags: Tags = THINK, marks: Sequence[str] = ()) -> None:
        """`marks` begin tool calls; see `take_call`."""
        self.phase: Phase = "start"  # "gap": after a closing tag, before the answer's next character
        self.has_reasoning = begins_inside
        self._begins_inside = begins_inside
        self._tags = tags
        self._marks = tuple(marks)
        self._held = ""  # may be the beginning of a tag
        self._num_newlines = 0  # held back after the last character of the reasoning; shown if more follows
        self._has_text = False  # the reasoning, or an answer with tags, has a character that is no newline

    @property
    def is_over(self) -> bool:
        """True once no more reasoning can come."""
        return self.phase in ("gap", "text", "answer")

    @property
    def reads_tags(self) -> bool:
        """False once special tokens have no more meaning."""
        return not self.is_over or bool(self._tags.around_answer[0])

    @property
    def num_waiting_chars(self) -> int:
        """Characters held back that may still turn out to be the answer's."""
        is_waiting = self.phase in ("gap", "text") or (self.phase == "start" and not self._begins_inside)
        return len(self._held) if is_waiting else 0

    def push(self, text: str) -> tuple[str, str]:
        """What the next piece adds to the reasoning, and to the answer."""
        reasoning = ""
        if self.phase == "start":
            text = self._begin(text)
        if self.phase == "reasoning":
            reasoning, text = self._reason(text)
        if self.phase == "gap":
            text = self._open(text)
        if self.phase == "text":
            text = self._answer(text)
        return reasoning, text

    def flush(self) -> tuple[str, str]:
        """The text has ended: what was held back is no tag."""
        held, self._held = self._held, ""
        is_reasoning = self.phase == "reasoning" or (self.phase == "start" and self._begins_inside)
        return (self.shown(held), "") if is_reasoning else ("", held)

    def take_call(self) -> str:
        """What follows the mark of a tool call in reasoning that the text's end has left open; "" if none.

        Models end their turn with a call and forget the closing tag. A call before that tag was only thought
        about: it stays reasoning.
        """
        if self.phase != "reasoning" or not self._held.startswith(self._marks or "\0"):
            return ""
        call, self._held = self._held, ""
        return call

    def _begin(self, text: str) -> str:
        """The text after an opening tag, or all of it when there is none; "" while that is undecided."""
        self._held += text
        seen = self._held.lstrip("\n")
        text = self._held
        if len(text) - len(seen) <= MAX_LEADING_NEWLINES:
            if self._tags.opening.startswith(seen) and seen != self._tags.opening:
                return ""
            if seen.startswith(self._tags.opening):
                text = seen.removeprefix(self._tags.opening)
                self.has_reasoning = True
        self._held = ""
        self.phase = "reasoning" if self.has_reasoning else "answer"
        if not self.has_reasoning and self._tags.around_answer[0]:
            self.phase = "gap"
        return text

    def _reason(self, text: str) -> tuple[str, str]:
        """The next piece of reasoning, and the text after its closing tag."""
        text = self._held + text
        end = text.find(self._tags.closing)
        if end >= 0:
            self._held = ""
            self.phase = "gap"
            return self.shown(text[:end]), text[end + len(self._tags.closing) :]
        at = min((at for mark in self._marks if (at := text.find(mark)) >= 0), default=-1)
        if len(text) - at > MAX_CALL_CHARS and at >= 0:
            self._marks, at = (), -1
        if at >= 0:
            self._held = text[at:]
            return self.shown(text[:at]), ""
        num_held = max(overlap(text, tag) for tag in (self._tags.closing, *self._marks))
        self._held = text[len(text) - num_held :]
        return self.shown(text[: len(text) - num_held]), ""

    def _open(self, text: str) -> str:
        """The answer's first text, without its opening tag; "" while that is undecided."""
        text = (self._held + text).lstrip("\n")
        self._held = ""
        opening, _ = self._tags.around_answer
        if text and text != opening and opening.startswith(text):
            self._held = text
            return ""
        if opening and text.startswith(opening):
            self.phase, self._has_text = "text", False
            return text.removeprefix(opening)
        if text:
            self.phase = "answer"
        return text

    def _answer(self, text: str) -> str:
        """The next text of an answer with tags, and what follows its closing tag."""
        _, closing = self._tags.around_answer
        text = self._held + text
        if not self._has_text:
            text = text.lstrip("\n")
        end = text.find(closing)
        shown = text[: end if end >= 0 else len(text) - overlap(text, closing)].rstrip("\n")
        self._has_text |= bool(shown)
        if end < 0:
            self._held = text[len(shown) :]
            return shown
        self._held, self.phase = "", "gap"
        self._tags = replace(self._tags, around_answer=("", ""))
        return shown + self._open(text[end + len(closing) :])

    def shown(self, text: str) -> str:
        """`text` without trailing newlines; these are shown with the text that follows them, if any."""
        stripped = text.rstrip("\n")
        if not stripped:
            self._num_newlines += len(text)
            return ""
        shown = "\n" * self._num_newlines + stripped if self._has_text else stripped.lstrip("\n")
        self._has_text = True
        self._num_newlines = len(text) - len(stripped)
        return shown
