"""Screens an answer while it is streamed. A block ends it with `content_filter`, and its generation."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from copy import copy
from dataclasses import dataclass, field

from gateway.answer import Delta, Following, ToolCallDelta
from gateway.errors import Unavailable
from guardrails.scan.chain import ScannerChain
from guardrails.scan.scanner import Blocked
from guardrails.screen.answer_checks import AnswerChecks
from guardrails.screen.screening import CheckFailed, Screening
from guardrails.screen.threads import is_long
from guardrails.text.sentences import SentenceSplitter


@dataclass(slots=True, eq=False)
class _Channel:
    """One text of a choice: its patterns, and what is held back until it has been judged."""

    scanner: ScannerChain
    grounds: bool  # documents must support it
    checks: AnswerChecks  # of its choice
    sentences: SentenceSplitter = field(default_factory=SentenceSplitter)
    held: list[str] = field(default_factory=list)  # whole sentences
    sent: list[str] = field(default_factory=list)
    has_ended: bool = False


@dataclass(slots=True, eq=False)
class _Choice:
    text: _Channel
    reasoning: _Channel
    arguments: dict[int, ScannerChain] = field(default_factory=dict)  # by tool call
    calls: list[ToolCallDelta] = field(default_factory=list)  # not yet judged
    has_ended: bool = False


class ScreenedDeltas(Following[Delta]):
    """The deltas that the client gets. The result does not depend on how the source cuts its text."""

    def __init__(
        self,
        source: AsyncIterator[Delta],
        screening: Screening,
        num_choices: int = 1,
        on_output: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_output` is called for each delta of the source: the model is at work while text is held."""
        super().__init__(source)
        self._num_choices = num_choices
        self._on_output = on_output
        self._screening = screening
        self._new_checks = AnswerChecks(screening)
        self._choices: dict[int, _Choice] = {}
        self._ready: deque[Delta] = deque()
        self._has_ended = False

    async def __anext__(self) -> Delta:
        """The next delta. Raises Unavailable for a check that failed, or what the source raises."""
        while not self._ready:
            if self._has_ended:
                raise StopAsyncIteration
            await self._read()
        return self._ready.popleft()

    async def _read(self) -> None:
        delta = await anext(self._source, None)
        if delta is None:
            self._has_ended = True
            return
        self._on_output()
        screened = Delta(delta.index)
        try:
            await self._screen(delta, screened)
        except Blocked:
            self._screening.note_personal_data()
            await self._end_blocked(screened)
            return
        except CheckFailed as failed:
            await self.aclose()
            raise check_failed(failed) from None
        if screened != Delta(delta.index):
            self._ready.append(screened)

    async def _end_blocked(self, last: Delta) -> None:
        """Send what came before the block, the policy's refusal, and the end of every choice."""
        self._has_ended = True
        await self.aclose()
        if last != Delta(last.index):
            self._ready.append(last)
        refusal = self._screening.profile.refusal or ""
        for index in range(self._num_choices):
            choice = self._choices.get(index)
            if choice is None or not choice.has_ended:
                self._ready.append(Delta(index, refusal, finish_reason="content_filter"))

    async def _screen(self, delta: Delta, out: Delta) -> None:
        """Fill `out` with what can be sent. Raises Blocked, when `out` holds what comes before the block."""
        choice = self._choices.get(delta.index)
        if choice is None:
            new = self._screening.answer_scanner
            checks = copy(self._new_checks)
            text = _Channel(new(in_json=self._screening.wants_json), True, checks)
            choice = self._choices[delta.index] = _Choice(text, _Channel(new(), False, checks))
        is_last = delta.finish_reason is not None
        reasoning_ends = bool(delta.text or delta.tool_calls or is_last or delta.reasoning_signature)
        try:
            async for piece in self._pass(choice.reasoning, delta.reasoning, ends=reasoning_ends):
                out.reasoning += piece
            async for piece in self._pass(choice.text, delta.text, ends=bool(delta.tool_calls) or is_last):
                out.text += piece
            for call in delta.tool_calls:
                self._pass_arguments(choice, call, out)
            if is_last:
                _finish_arguments(choice, out)
                await _judge_calls(choice, out)
                out.text += await choice.text.checks.end("".join(choice.text.sent))
                self._screening.note_personal_data()
        finally:
            out.tokens = delta.tokens
        choice.has_ended = is_last
        out.finish_reason, out.stop_string = delta.finish_reason, delta.stop_string
        out.reasoning_signature = delta.reasoning_signature

    async def _pass(self, channel: _Channel, text: str, *, ends: bool) -> AsyncIterator[str]:
        """What of a channel can be sent; a channel that has ended may begin again."""
        if not text and (not ends or channel.has_ended):
            return
        channel.has_ended = ends
        blocked: Blocked | None = None
        try:
            step = channel.scanner.finish if ends else channel.scanner.feed
            passed = await self._screening.threads.run(lambda: step(text), is_long([text]))
        except Blocked as found:
            passed, ends, blocked = found.sent, True, found
        async for piece in self._judged(channel, passed, ends=ends):
            channel.sent.append(piece)
            yield piece
        if blocked is not None:
            raise blocked

    async def _judged(self, channel: _Channel, text: str, *, ends: bool) -> AsyncIterator[str]:
        if channel.checks.holds == "nothing":
            yield text
            return
        channel.held += channel.sentences.feed(text)
        if ends:
            channel.held += channel.sentences.finish()
        if channel.checks.holds == "answer" and not ends:
            return
        held, channel.held = channel.held, []
        if channel.checks.holds == "answer" and held:
            await channel.checks.ask_hooks("".join(held))
        async for sentence in channel.checks.allowed(held, grounds=channel.grounds):
            yield sentence

    def _pass_arguments(self, choice: _Choice, call: ToolCallDelta, out: Delta) -> None:
        """Add a piece of a call, after the rest of the call before it; it waits where calls are judged."""
        if call.index not in choice.arguments:
            _finish_arguments(choice, out)
            choice.arguments[call.index] = self._screening.answer_scanner(in_json=True)
        passed = ToolCallDelta(call.index, "", call.call_id, call.name)
        choice.calls.append(passed)
        is_held = choice.text.checks.holds != "nothing"
        if not is_held:
            out.tool_calls.append(passed)
        try:
            passed.arguments = choice.arguments[call.index].feed(call.arguments)
        except Blocked as blocked:
            passed.arguments = blocked.sent
            raise


def _finish_arguments(choice: _Choice, out: Delta) -> None:
    """Add what was held back of each call's arguments. Raises Blocked."""
    is_held = choice.text.checks.holds != "nothing"
    for index, scanner in choice.arguments.items():
        rest = ToolCallDelta(index)
        try:
            rest.arguments = scanner.finish()
        except Blocked as blocked:
            rest.arguments = blocked.sent
            raise
        finally:
            if rest.arguments:
                choice.calls.append(rest)
                out.tool_calls += [] if is_held else [rest]


async def _judge_calls(choice: _Choice, out: Delta) -> None:
    """Judge each call as a whole, and add it if it has waited. Raises Blocked or CheckFailed."""
    checks = choice.text.checks
    for index in choice.arguments:  # the pieces of several calls may alternate
        pieces = [call for call in choice.calls if call.index == index]
        await checks.judge_call("".join(piece.arguments for piece in pieces))
        out.tool_calls += pieces if checks.holds != "nothing" else []


def check_failed(failed: CheckFailed) -> Unavailable:
    """What the client gets when a check could not be made, and the policy says `block`."""
    return Unavailable(
        f"A guardrail ({failed.check}) could not be checked, and the policy lets nothing pass without it. "
        "Try again.",
        code="guardrail_unavailable",
    )
