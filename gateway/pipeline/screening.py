"""What the guardrails of a model do to one request and its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.answer import Delta, ToolCallDelta
from gateway.errors import InvalidRequest
from guardrails.checks.injection import kinds_of
from guardrails.masking import Blocked, Masking
from guardrails.personal_data import KINDS
from guardrails.scanner import Scanner
from policies.guardrails import GuardrailProfile

PROMPT_FIELDS = ("prompt", "suffix", "input")
UNTRUSTED_ROLES = {"user", "tool", "function"}


class Screening:
    """The checks of one profile, applied to one exchange."""

    def __init__(self, profile: GuardrailProfile) -> None:
        self._profile = profile
        self._attack = ""
        rules = profile.personal_data
        self._masking: Masking | None = None
        if rules is not None:
            kinds = KINDS if rules.kinds is None else tuple(rules.kinds)
            self._masking = Masking(kinds, "flag" if profile.dry_run else rules.action)

    @property
    def verdicts(self) -> str:
        """What was found so far, as `email=2 injection:override=1`; never the text itself."""
        found = dict(self._masking.found) if self._masking is not None else {}
        if self._attack:
            found[f"injection:{self._attack}"] = 1
        return " ".join(f"{kind}={count}" for kind, count in sorted(found.items()))

    @property
    def is_flagged(self) -> bool:
        """Whether something was found that went on unchanged: the answer is not stored."""
        return bool(self._attack or (self.verdicts and not self.changes_text))

    @property
    def changes_text(self) -> bool:
        """Whether the answer may be other than what the model wrote."""
        rules = self._profile.personal_data
        return rules is not None and rules.action != "flag" and not self._profile.dry_run

    def request_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body to go on with. Raises InvalidRequest with the code `content_filter`."""
        try:
            changed = {name: _mapped(body[name], self._screen) for name in PROMPT_FIELDS if name in body}
            if isinstance(body.get("messages"), list):
                changed["messages"] = [self._message(each) for each in body["messages"]]
            if isinstance(body.get("prediction"), dict):
                changed["prediction"] = self._message(body["prediction"])
        except Blocked as blocked:
            raise InvalidRequest(
                f"The request was refused by a guardrail ({blocked.kind}): take that out of it.",
                code="content_filter",
            ) from None
        return body | changed

    def answer_deltas(self, deltas: AsyncIterator[Delta]) -> ScreenedDeltas | None:
        """The screened answer; None where nothing is to be screened."""
        masking, rules = self._masking, self._profile.personal_data
        if masking is None or rules is None:
            return None
        return ScreenedDeltas(deltas, lambda: masking.restorer(screens_answers=rules.answers))

    def _message(self, message: object) -> object:
        """A message with its texts and the arguments of its tool calls screened."""
        if not isinstance(message, dict):
            return message
        changed = dict(message)
        if "content" in message:
            is_untrusted = message.get("role") in UNTRUSTED_ROLES
            changed["content"] = _mapped(message["content"], self._screen if is_untrusted else self._mask)
        if isinstance(message.get("tool_calls"), list):
            changed["tool_calls"] = [self._tool_call(each) for each in message["tool_calls"]]
        return changed

    def _tool_call(self, call: object) -> object:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            return call
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            return call
        return call | {"function": function | {"arguments": self._mask(arguments)}}

    def _screen(self, text: str) -> str:
        """Text of an untrusted role: also searched for attacks."""
        rules = self._profile.injection
        if rules is not None and not self._attack:
            self._attack = next(iter(kinds_of(text)), "")
            if self._attack and rules.action == "block" and not self._profile.dry_run:
                raise Blocked(f"injection: {self._attack}")
        return self._mask(text)

    def _mask(self, text: str) -> str:
        return text if self._masking is None else self._masking.mask(text)


def _mapped(value: object, change: Callable[[str], str]) -> object:
    """A string, or the strings in a list of strings or of parts with a text."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return value | {"text": change(value["text"])}
    return value


@dataclass(slots=True, eq=False)
class _Choice:
    """The scanners of one choice."""

    text: Scanner
    reasoning: Scanner
    arguments: dict[int, Scanner] = field(default_factory=dict)  # by tool call
    has_ended: bool = False


class ScreenedDeltas:
    """Screens an answer while it is streamed. A block ends it with `content_filter`, and its generation."""

    def __init__(self, source: AsyncIterator[Delta], new_scanner: Callable[[], Scanner]) -> None:
        self._source = source
        self._new_scanner = new_scanner
        self._choices: dict[int, _Choice] = {}
        self._ready: deque[Delta] = deque()
        self._has_ended = False

    def __aiter__(self) -> ScreenedDeltas:
        return self

    async def __anext__(self) -> Delta:
        while not self._ready:
            if self._has_ended:
                raise StopAsyncIteration
            await self._read()
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Stop the generation."""
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()

    async def _read(self) -> None:
        try:
            delta = await anext(self._source)
            screened = self._screened(delta)
        except StopAsyncIteration:
            self._has_ended = True
            return
        except Blocked:
            self._has_ended = True
            await self.aclose()
            self._ready.extend(
                Delta(index, finish_reason="content_filter")
                for index, choice in sorted(self._choices.items())
                if not choice.has_ended
            )
            return
        if screened != Delta(delta.index):
            self._ready.append(screened)

    def _screened(self, delta: Delta) -> Delta:
        choice = self._choices.get(delta.index)
        if choice is None:
            choice = self._choices[delta.index] = _Choice(self._new_scanner(), self._new_scanner())
        reasoning = choice.reasoning.feed(delta.reasoning)
        text = choice.text.feed(delta.text)
        calls = [piece for call in delta.tool_calls for piece in self._arguments(choice, call)]
        if delta.text or delta.tool_calls or delta.finish_reason or delta.reasoning_signature:
            reasoning += choice.reasoning.finish()
        if delta.tool_calls or delta.finish_reason:
            text += choice.text.finish()
        if delta.finish_reason:
            calls += _rest(choice)
            choice.has_ended = True
        return replace(delta, reasoning=reasoning, text=text, tool_calls=calls)

    def _arguments(self, choice: _Choice, call: ToolCallDelta) -> list[ToolCallDelta]:
        """The piece of a call, after the rest of the call before it."""
        rest = [] if call.index in choice.arguments else _rest(choice)
        scanner = choice.arguments.setdefault(call.index, self._new_scanner())
        return [*rest, replace(call, arguments=scanner.feed(call.arguments))]


def _rest(choice: _Choice) -> list[ToolCallDelta]:
    """What was held back of each call's arguments."""
    rests = [ToolCallDelta(index, scanner.finish()) for index, scanner in choice.arguments.items()]
    return [rest for rest in rests if rest.arguments]
