"""Splits a model's text into tool calls and the text around them while it streams.

The result does not depend on how the stream is cut. Text that turns out not to be a call is emitted
unchanged; only the marks of calls and the white space around calls are dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.answer import ToolCallDelta
from gateway.tool_calls.call_syntax import CallSink, Matcher, overlap
from gateway.tool_calls.json_scanner import NotACall

HOLD_CHARS = 256
"""A call is emitted when complete or after this many characters of arguments: a short broken one is text."""

MAX_MARK_CHARS = 64
"""No mark is longer: what is read of an unfinished call to see whether one began it."""


CallId = Callable[[str, str, int], str]


@dataclass(frozen=True, slots=True)
class CallForm:
    """What is around arguments, as models write it and grammars ask for it."""

    opening: str  # before the first call
    before: str  # before each call's arguments; "{name}" is the function, "{number}" any number
    after: str
    between: str
    closing: str = ""
    parameter: tuple[str, str] = ("", "")  # around each value, where arguments are elements: no JSON object
    separator: str = ""  # between parameters; "": values are plain text, else JSON
    quote: str = ""  # around strings, where values have Gemma's notation
    text: str = ""  # before an answer without calls
    preamble: tuple[str, str] = ("", "")  # around text that may precede calls; special tokens


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a model family writes calls."""

    name: str
    match: Callable[[CallSink], Matcher[None]]  # one or more calls, after a mark or at the answer's start
    form: CallForm
    marks: tuple[str, ...] = ()  # begin calls anywhere in the text
    bare_marks: tuple[str, ...] = ()  # do so as the first part of what `match` reads
    leading_chars: str = ""  # begin calls as the first character of the answer
    tokens: tuple[str, ...] = ()  # parts of the syntax that are special tokens in some vocabularies
    endings: tuple[str, ...] = ()  # what may follow a call's arguments, without white space
    merges_text: bool = False  # templates refuse text beside reasoning in a message with calls
    has_single_calls: bool = False  # templates render one call of a message, or refuse more
    call_id: CallId | None = None  # the id that templates need, from a call's id, name and number in the chat


@dataclass(slots=True)
class Parsed:
    """What can be emitted now: text outside of calls, and pieces of calls."""

    text: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


class ToolCallParser:
    """Parses one answer. Calls of functions that were not offered are text."""

    __slots__ = (
        "_all_marks",
        "_at_start",
        "_has_text",
        "_held",
        "_held_space",
        "_hold_chars",
        "_is_emitted",
        "_is_named",
        "_matcher",
        "_max_calls",
        "_name",
        "_names",
        "_num_argument_chars",
        "_out",
        "_pending",
        "_raw",
        "_schemas",
        "_syntax",
        "is_done",
        "num_calls",
        "num_settled_chars",
    )  # fmt: skip

    def __init__(
        self,
        syntax: Syntax,
        names: Collection[str],
        *,
        hold_chars: int = HOLD_CHARS,
        max_calls: int | None = None,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """`names` are the functions offered, `schemas` say the types of their parameters.

        The answer ends after `max_calls` calls.
        """
        self.num_calls = 0  # emitted, at least in part
        self.num_settled_chars = 0  # characters that were emitted as text or belong to calls
        self.is_done = False
        self._syntax = syntax
        self._names = names
        self._schemas = schemas or {}
        self._all_marks = syntax.marks + syntax.bare_marks
        self._hold_chars = hold_chars
        self._max_calls = max_calls
        self._out = Parsed()
        self._at_start = bool(syntax.leading_chars)
        self._has_text = False
        self._held_space = ""  # white space that is emitted if text follows
        self._held = ""  # may be the beginning of a mark
        self._matcher: Matcher[None] | None = None  # while inside calls
        self._raw: list[str] = []  # matched since the mark or the last call, not emitted in any form
        self._name = ""
        self._pending: list[str] = []  # arguments not yet emitted
        self._num_argument_chars = 0
        self._is_named = False  # inside a call whose name is known
        self._is_emitted = False  # the current call, at least in part

    @property
    def is_inside_call(self) -> bool:
        """True when the text read last belongs to a call: after a mark or a function's name."""
        if self._matcher is None:
            return False
        return self._is_named or "".join(self._raw[:MAX_MARK_CHARS]).startswith(self._all_marks)

    def push(self, text: str) -> Parsed:
        """Parse the next piece of text."""
        self._out = Parsed()
        self.num_settled_chars += len(text) + self._num_waiting
        while text and not self.is_done:
            text = self._pass_text(text) if self._matcher is None else self._feed(self._matcher, text)
        if self._is_emitted:
            self._emit_pending()
        self.num_settled_chars -= self._num_waiting
        return self._out

    def flush(self) -> Parsed:
        """Parse the end of the text: an incomplete call becomes text."""
        self._out = Parsed()
        self.num_settled_chars += self._num_waiting
        if self._is_named or not self._is_after_arguments():
            self._emit_text("".join(self._raw) + self._held)
        self._raw.clear()
        self._held = ""
        self._matcher = None
        if not self.num_calls:
            self._out.text += self._held_space
        self._held_space = ""
        return self._out

    def begin(self, name: str) -> Mapping[str, Any]:
        """Start a call of this function (CallSink). Raises NotACall when it was not offered."""
        if name not in self._names:
            raise NotACall
        self._name = name
        self._num_argument_chars = 0
        self._is_named = True
        return self._schemas.get(name, {})

    def put(self, arguments: str, num_held: int = 0) -> None:
        """Append to the call's arguments (CallSink)."""
        self._pending.append(arguments)
        self._num_argument_chars += len(arguments)
        if self._is_emitted:
            del self._raw[: len(self._raw) - num_held]
        elif self._num_argument_chars >= self._hold_chars:
            self._emit_arguments(num_held)

    def end(self) -> None:
        """Complete the call (CallSink)."""
        self._emit_arguments()
        self._is_named = self._is_emitted = False
        self.is_done = self.num_calls == self._max_calls

    def commit(self) -> None:
        """Count everything matched so far as calls (CallSink)."""
        self._raw.clear()

    @property
    def _num_waiting(self) -> int:
        return len(self._held_space) + len(self._held) + len(self._raw)

    def _is_after_arguments(self) -> bool:
        """True when the unemitted text is a prefix of what may follow a call's arguments."""
        raw = "".join("".join(self._raw).split())
        return self._matcher is not None and any(ending.startswith(raw) for ending in self._syntax.endings)

    def _pass_text(self, text: str) -> str:
        """Emit the text before calls; the text from the first call on."""
        text = self._held + text
        self._held = ""
        if self._at_start:
            stripped = text.lstrip()
            if not stripped:
                self._held = text
                return ""
            self._at_start = False
            if stripped[0] in self._syntax.leading_chars:
                self._held_space = text[: len(text) - len(stripped)]
                self._start_calls("")
                return stripped
        found = [(at, mark) for mark in self._all_marks if (at := text.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            self._emit_text(text[:at])
            is_bare = mark in self._syntax.bare_marks
            self._start_calls("" if is_bare else mark)
            return text[at if is_bare else at + len(mark) :]
        num_held = max((overlap(text, mark) for mark in self._all_marks), default=0)
        self._held = text[len(text) - num_held :]
        self._emit_text(text[: len(text) - num_held])
        return ""

    def _start_calls(self, mark: str) -> None:
        self._raw = list(mark)
        self._matcher = self._syntax.match(self)
        next(self._matcher)

    def _feed(self, matcher: Matcher[None], text: str) -> str:
        """Send characters to the matcher; the text after its end."""
        for i, char in enumerate(text):
            self._raw.append(char)
            try:
                matcher.send(char)
            except StopIteration:
                self._raw.clear()
                self._matcher = None
                return text[i + 1 :]
            except NotACall:
                return self._fall_back_to_text() + text[i + 1 :]
            if self.is_done:
                self._raw.clear()
                return ""
        return ""

    def _fall_back_to_text(self) -> str:
        """Emit what was matched as text, but return its end if that may begin another call."""
        raw = "".join(self._raw)
        self._raw.clear()
        self._matcher = None
        if self._is_emitted:
            self._emit_pending()
        self._pending.clear()
        self._is_named = self._is_emitted = False
        num_kept = max((overlap(raw, mark) for mark in self._all_marks), default=0) or 1
        self._emit_text(raw[:-num_kept])
        return raw[-num_kept:]

    def _emit_text(self, text: str) -> None:
        """Emit text; hold trailing white space, and drop leading white space after calls."""
        emitted = text.rstrip()
        space = text[len(emitted) :]
        if not emitted:
            self._held_space += space
            return
        emitted = self._held_space + emitted
        self._held_space = space
        if self.num_calls and not self._has_text:
            emitted = emitted.lstrip()
        self._has_text = True
        self._out.text += emitted

    def _emit_arguments(self, num_held: int = 0) -> None:
        """Emit the pending arguments; the first piece of a call carries its id and name."""
        if not self._is_emitted:
            call_id = f"call_{secrets.token_hex(12)}"
            self._out.calls.append(ToolCallDelta(self.num_calls, call_id=call_id, name=self._name))
            self.num_calls += 1
            self._is_emitted = True
        del self._raw[: len(self._raw) - num_held]
        self._emit_pending()

    def _emit_pending(self) -> None:
        calls = self._out.calls
        arguments = "".join(self._pending)
        self._pending.clear()
        if calls and calls[-1].index == self.num_calls - 1:
            calls[-1].arguments += arguments
        elif arguments:
            calls.append(ToolCallDelta(self.num_calls - 1, arguments))
