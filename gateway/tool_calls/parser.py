"""Parts a model's text into its calls and the text beside them, while it comes.

The same in one piece or in any others. Text that turns out to be no call is shown as it is: nothing is lost
but the marks of calls and the white space around them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gateway.answer import ToolCallDelta
from gateway.tool_calls.call_syntax import CallSink, Reading
from gateway.tool_calls.json_scanner import NotACall

HOLD_CHARS = 256
"""A call is shown when it is complete, or has so many characters of arguments: a short broken one is text."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a family of models writes calls."""

    name: str
    read: Callable[[CallSink], Reading[None]]  # one call or several, from behind a mark, or from the start
    marks: tuple[str, ...] = ()  # begin calls wherever they stand
    starts: str = ""  # characters that begin calls as the answer's first
    tokens: tuple[str, ...] = ()  # pieces of the syntax that are special tokens in some vocabularies
    endings: tuple[str, ...] = ()  # what may stand behind a call's arguments, without white space


@dataclass(slots=True)
class Parsed:
    """What may be shown now: text outside of the calls, and pieces of calls."""

    text: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


class ToolCallParser:
    """Follows one answer. Calls of functions that were not offered are text."""

    __slots__ = (
        "_at_start", "_gap", "_has_text", "_held", "_hold_chars", "_is_begun", "_is_shown", "_max_calls",
        "_name", "_names", "_num_arguments", "_out", "_pending", "_raw", "_reader", "_syntax", "is_done",
        "num_calls", "num_settled_chars",
    )  # fmt: skip

    def __init__(
        self,
        syntax: Syntax,
        names: Collection[str],
        *,
        hold_chars: int = HOLD_CHARS,
        max_calls: int | None = None,
    ) -> None:
        """`names` are the functions offered; behind `max_calls` calls the answer is over."""
        self.num_calls = 0  # shown, in part at least
        self.num_settled_chars = 0  # characters of the text that are settled: shown, or part of calls
        self.is_done = False
        self._syntax = syntax
        self._names = names
        self._hold_chars = hold_chars
        self._max_calls = max_calls
        self._out = Parsed()
        self._at_start = bool(syntax.starts)
        self._has_text = False
        self._gap = ""  # white space that is shown if text follows
        self._held = ""  # may be the beginning of a mark
        self._reader: Reading[None] | None = None  # inside calls
        self._raw: list[str] = []  # read since the mark or the last call, shown nowhere
        self._name = ""
        self._pending: list[str] = []  # arguments to be shown
        self._num_arguments = 0
        self._is_begun = False  # inside a call whose name is known
        self._is_shown = False  # in part at least

    @property
    def is_inside_call(self) -> bool:
        """What was read last belongs to a call: one was marked as such, or named."""
        is_marked = "".join(self._raw).startswith(self._syntax.marks)
        return self._reader is not None and (self._is_begun or is_marked)

    def push(self, text: str) -> Parsed:
        """What the next piece adds."""
        self._out = Parsed()
        self.num_settled_chars += len(text) + self._num_waiting
        while text and not self.is_done:
            text = self._talk(text) if self._reader is None else self._read(self._reader, text)
        if self._is_shown:
            self._show()
        self.num_settled_chars -= self._num_waiting
        return self._out

    def flush(self) -> Parsed:
        """The text has ended: what is no complete call is text after all."""
        self._out = Parsed()
        self.num_settled_chars += self._num_waiting
        if self._is_begun or not self._is_behind_call():
            self._say("".join(self._raw) + self._held)
        self._raw.clear()
        self._held = ""
        self._reader = None
        if not self.num_calls:
            self._out.text += self._gap
        self._gap = ""
        return self._out

    def begin(self, name: str) -> None:
        """From the syntax: a call of this function."""
        if name not in self._names:
            raise NotACall
        self._name = name
        self._num_arguments = 0
        self._is_begun = True

    def put(self, arguments: str) -> None:
        """From the syntax: more arguments."""
        self._pending.append(arguments)
        self._num_arguments += len(arguments)
        if self._is_shown:
            self._raw.clear()
        elif self._num_arguments >= self._hold_chars:
            self._show()

    def end(self) -> None:
        """From the syntax: the arguments are complete."""
        self._show()
        self._is_begun = self._is_shown = False
        self.is_done = self.num_calls == self._max_calls

    def settle(self) -> None:
        """From the syntax: all that was read belongs to calls."""
        self._raw.clear()

    @property
    def _num_waiting(self) -> int:
        return len(self._gap) + len(self._held) + len(self._raw)

    def _is_behind_call(self) -> bool:
        """True when all that was read is what ends a call, cut short."""
        read = "".join("".join(self._raw).split())
        return self._reader is not None and any(known.startswith(read) for known in self._syntax.endings)

    def _talk(self, text: str) -> str:
        """Take text up to where calls begin; the text from there on."""
        text = self._held + text
        self._held = ""
        if self._at_start:
            begun = text.lstrip()
            if not begun:
                self._held = text
                return ""
            self._at_start = False
            if begun[0] in self._syntax.starts:
                self._gap = text[: len(text) - len(begun)]
                self._open("")
                return begun
        found = [(at, mark) for mark in self._syntax.marks if (at := text.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            self._say(text[:at])
            self._open(mark)
            return text[at + len(mark) :]
        num_held = max((_overlap(text, mark) for mark in self._syntax.marks), default=0)
        self._held = text[len(text) - num_held :]
        self._say(text[: len(text) - num_held])
        return ""

    def _open(self, mark: str) -> None:
        self._raw = list(mark)
        self._reader = self._syntax.read(self)
        next(self._reader)

    def _read(self, reader: Reading[None], text: str) -> str:
        """Hand characters to the syntax; the text behind its end."""
        for i, char in enumerate(text):
            self._raw.append(char)
            try:
                reader.send(char)
            except StopIteration:
                self._raw.clear()
                self._reader = None
                return text[i + 1 :]
            except NotACall:
                return self._give_up() + text[i + 1 :]
            if self.is_done:
                self._raw.clear()
                return ""
        return ""

    def _give_up(self) -> str:
        """What was read is text; the last character may begin something new and is returned."""
        raw = "".join(self._raw)
        self._raw.clear()
        self._reader = None
        if self._is_shown:
            self._show()
        self._pending.clear()
        self._is_begun = self._is_shown = False
        self._say(raw[:-1])
        return raw[-1:]

    def _say(self, text: str) -> None:
        """Show text; white space at its end waits, and none is shown between the start and a call."""
        text = self._gap + text
        said = text.rstrip()
        self._gap = text[len(said) :]
        if not said:
            return
        if self.num_calls and not self._has_text:
            said = said.lstrip()
        self._has_text = True
        self._out.text += said

    def _show(self) -> None:
        """Give out the arguments that are pending; with the first ones goes the call's name."""
        if not self._is_shown:
            call_id = f"call_{secrets.token_hex(12)}"
            self._out.calls.append(ToolCallDelta(self.num_calls, call_id=call_id, name=self._name))
            self.num_calls += 1
            self._is_shown = True
        calls = self._out.calls
        arguments = "".join(self._pending)
        self._pending.clear()
        self._raw.clear()
        if calls and calls[-1].index == self.num_calls - 1:
            calls[-1].arguments += arguments
        elif arguments:
            calls.append(ToolCallDelta(self.num_calls - 1, arguments))


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
