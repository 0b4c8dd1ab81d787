"""Parts a model's text into its thought and its answer, while it comes."""

from __future__ import annotations

from typing import Literal

from backend.tokenizer.thinking import CLOSE_TAG, OPEN_TAG

Phase = Literal["start", "thought", "gap", "answer"]

MAX_LEAD = 16
"""A thought begins after so many line breaks at most; a text with more before it is an answer."""


class ThoughtSplitter:
    """`<think>thought</think>answer` in any pieces; neither part has the line breaks beside the tags.

    Only a text that begins with the tag (or `begins_inside` a thought, when the prompt held the tag) has a
    thought: tags inside an answer are the answer's. The result never depends on how the text was cut.
    """

    __slots__ = ("_begins_inside", "_has_spoken", "_held", "_newlines", "has_thought", "phase")

    def __init__(self, *, begins_inside: bool) -> None:
        self.phase: Phase = "start"  # "gap": behind the thought, before the answer's first character
        self.has_thought = begins_inside
        self._begins_inside = begins_inside
        self._held = ""  # may be the beginning of a tag
        self._newlines = 0  # come so far behind the last character of the thought; shown if more follows
        self._has_spoken = False  # the thought has a character that is no line break

    @property
    def is_over(self) -> bool:
        """True once no more of a thought can come."""
        return self.phase in ("gap", "answer")

    @property
    def num_waiting(self) -> int:
        """Characters held back that may yet be the answer's."""
        return 0 if self.phase != "start" or self._begins_inside else len(self._held)

    def push(self, text: str) -> tuple[str, str]:
        """What the next piece adds to the thought, and to the answer."""
        thought = ""
        if self.phase == "start":
            text = self._begin(text)
        if self.phase == "thought":
            thought, text = self._think(text)
        if self.phase == "gap":
            text = text.lstrip("\n")
            if text:
                self.phase = "answer"
        return thought, text

    def flush(self) -> tuple[str, str]:
        """The text has ended: what was held back is no tag after all."""
        held, self._held = self._held, ""
        is_thought = self.phase == "thought" or (self.phase == "start" and self._begins_inside)
        return (self._shown(held), "") if is_thought else ("", held)

    def _begin(self, text: str) -> str:
        """The text behind an opening tag, or all of it when there is none; "" while that is open."""
        self._held += text
        seen = self._held.lstrip("\n")
        text = self._held
        if len(text) - len(seen) <= MAX_LEAD:
            if OPEN_TAG.startswith(seen) and seen != OPEN_TAG:
                return ""
            if seen.startswith(OPEN_TAG):
                text = seen.removeprefix(OPEN_TAG)
                self.has_thought = True
        self._held = ""
        self.phase = "thought" if self.has_thought else "answer"
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """The next of the thought, and the text behind its end."""
        text = self._held + text
        end = text.find(CLOSE_TAG)
        if end >= 0:
            self._held = ""
            self.phase = "gap"
            return self._shown(text[:end]), text[end + len(CLOSE_TAG) :]
        num_held = _overlap(text, CLOSE_TAG)
        self._held = text[len(text) - num_held :]
        return self._shown(text[: len(text) - num_held]), ""

    def _shown(self, text: str) -> str:
        """`text` without line breaks at the end of the thought so far; they come with what follows them."""
        said = text.rstrip("\n")
        if not said:
            self._newlines += len(text)
            return ""
        shown = "\n" * self._newlines + said if self._has_spoken else said.lstrip("\n")
        self._has_spoken = True
        self._newlines = len(text) - len(said)
        return shown


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
