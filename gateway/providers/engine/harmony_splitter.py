"""Splits messages in channels, as gpt-oss writes them, into reasoning and answer while they stream.

Channels: `analysis` is reasoning; `final`, and `commentary` without a recipient, are the answer's text. A
message to a recipient is a call, which is passed on in one form for the parser of tool calls, wherever its
header names the recipient. Nothing is an error: a header that cannot be read is text.
"""

from __future__ import annotations

import re

from gateway.providers.engine.reasoning_splitter import Phase
from gateway.tool_calls.call_syntax import overlap

MAX_HEADER_CHARS = 256
CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
CALL_HEADER = "<|channel|>commentary to="
CALL_END = "<|call|>"
_ENDS = ("<|end|>", "<|return|>", CALL_END)
_HEADS = (START, CHANNEL)
_BEGINNINGS = (*_HEADS, MESSAGE, "<|constrain|>", "to=")
_HEADER = re.compile(
    r"\s*(?:<\|start\|>)?\s*(?:assistant)?\s*(?:to=(?P<role>[\w.-]+)[^\s<]*)?\s*"
    r"(?:<\|channel\|>\s*(?:analysis|commentary|final)?\s*(?=<\|channel\|>))*"  # models repeat it
    r"(?:<\|channel\|>\s*(?P<channel>analysis|commentary|final)\s*(?:to=(?P<recipient>[\w.-]+)[^\s<]*)?)?"
    r"\s*(?:<\|channel\|>\s*(?:analysis|commentary|final)\s*)?(?:<\|constrain\|>)?\s*[\w.+/-]*\s*"
)


class HarmonySplitter:
    """The interface of ReasoningSplitter; the result does not depend on how the text is cut."""

    __slots__ = ("_has", "_held", "_is_call", "_is_header", "_joins", "has_reasoning", "phase")

    def __init__(self) -> None:
        self.phase: Phase = "start"
        self.has_reasoning = False
        self._held = ""  # an unfinished header, or what may be the beginning of a token
        self._is_header = True
        self._is_call = False
        self._has = {True: False, False: False}  # whether there was reasoning; an answer
        self._joins = False  # the message's first character follows another message of its kind

    @property
    def is_over(self) -> bool:
        """True while the answer is read; more reasoning may come."""
        return self.phase == "text"

    @property
    def reads_tags(self) -> bool:
        """Always: every message has a header."""
        return True

    @property
    def num_waiting_chars(self) -> int:
        """Characters held back that may still turn out to be the answer's."""
        return 0

    def push(self, text: str) -> tuple[str, str]:
        """What the next piece adds to the reasoning, and to the answer."""
        pieces: tuple[list[str], list[str]] = ([], [])
        text = self._held + text
        self._held = ""
        while text:
            text = self._read_header(text, pieces) if self._is_header else self._read_body(text, pieces)
        return "".join(pieces[0]), "".join(pieces[1])

    def flush(self) -> tuple[str, str]:
        """The text has ended: an unfinished header is dropped, an unfinished token is none."""
        held, self._held = self._held, ""
        if self._is_header:
            seen = held.lstrip()
            is_dropped = seen.startswith("<|") or (not seen and self.phase != "start")
            return "", "" if is_dropped else held
        return (held, "") if self.phase == "reasoning" else ("", held)

    def _read_header(self, text: str, pieces: tuple[list[str], list[str]]) -> str:
        """The text after a header's end; "" while it is unfinished."""
        end = text.find(MESSAGE)
        is_possible = _may_be_header(text if end < 0 else text[:end]) and end <= MAX_HEADER_CHARS
        if end < 0 and is_possible and len(text) < MAX_HEADER_CHARS + len(MESSAGE):
            self._held = text
            return ""
        self._is_header = False
        found = _HEADER.fullmatch(text, 0, end) if end >= 0 and is_possible else None
        if found is None:  # text, and what begins the next header ends it
            self._begin(is_reasoning=False)
            head = next((mark for mark in _HEADS if text.startswith(mark)), "")
            self._put(head, pieces)
            return text[len(head) :]
        recipient = found["recipient"] or found["role"]
        self._is_call = recipient is not None
        self._begin(is_reasoning=found["channel"] == "analysis" and not self._is_call)
        if self._is_call:
            self._joins = False
            pieces[1].append(f"{CALL_HEADER}{recipient}{MESSAGE}")
        return text[end + len(MESSAGE) :]

    def _begin(self, *, is_reasoning: bool) -> None:
        self.phase = "reasoning" if is_reasoning else "text"
        self.has_reasoning |= is_reasoning
        self._joins = self._has[is_reasoning]

    def _read_body(self, text: str, pieces: tuple[list[str], list[str]]) -> str:
        """The text after the message's end; "" while it goes on."""
        at = _next(text, 0)
        if at == len(text):
            num_held = max(overlap(text, mark) for mark in (*_ENDS, *_HEADS))
            self._held = text[len(text) - num_held :]
            self._put(text[: len(text) - num_held], pieces)
            return ""
        self._put(text[:at], pieces)
        if self._is_call:
            pieces[1].append(CALL_END)
        self._is_header, self._is_call = True, False
        self.phase = "gap"
        ended = next((mark for mark in _ENDS if text.startswith(mark, at)), "")
        return text[at + len(ended) :]

    def _put(self, text: str, pieces: tuple[list[str], list[str]]) -> None:
        is_reasoning = self.phase == "reasoning"
        if text and self._joins:
            text = "\n\n" + text
            self._joins = False
        if text and not self._is_call:
            self._has[is_reasoning] = True
        pieces[0 if is_reasoning else 1].append(text)


def _next(text: str, start: int) -> int:
    """Where the next token that ends or begins a message is; the text's length if there is none."""
    return min((at for mark in (*_ENDS, *_HEADS) if (at := text.find(mark, start)) >= 0), default=len(text))


def _may_be_header(text: str) -> bool:
    seen = text.lstrip()
    if any(mark in seen for mark in _ENDS) or seen.find(START, 1) > 0:
        return False
    return any(each.startswith(seen) or seen.startswith(each) for each in _BEGINNINGS)
