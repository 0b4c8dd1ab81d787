"""One choice on its way from the engine's tokens to deltas: text, stop strings, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from backend.sampling.stop import StopMatcher
from backend.tokenizer import Detokenizer, Tokenizer
from backend.types import StepOutput, TokenLogprobs
from gateway.answer import Delta, FinishReason, TokenInfo
from gateway.providers.engine.reasoning_splitter import ThoughtSplitter
from gateway.tool_calls.parser import ToolCallParser


class Choice:
    """Turns step outputs of one sequence into deltas, until `is_finished`; `num_tokens` is what they took.

    Token records are held back with the text they belong to, and dropped with text that a stop string cuts.
    A thought is parted from the answer, which alone has stop strings and token records; and tool calls from
    its text, which alone has stop strings.
    """

    __slots__ = (
        "_detokenizer",
        "_held",
        "_made",
        "_min_tokens",
        "_parser",
        "_shown",
        "_splitter",
        "_stops",
        "_tokenizer",
        "_wants_logprobs",
        "index",
        "is_finished",
        "num_thought_tokens",
        "num_tokens",
    )

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        *,
        wants_logprobs: bool = False,
        min_tokens: int = 0,
        splitter: ThoughtSplitter | None = None,
        parser: ToolCallParser | None = None,
    ) -> None:
        """Stop strings are looked for after `min_tokens`.

        Without a `splitter` all text is the answer, without a `parser` it holds no tool calls.
        """
        self.index = index
        self.is_finished = False
        self.num_tokens = 0
        self.num_thought_tokens = 0  # of num_tokens, through the tag that ends the thought
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops) if stops else None
        self._wants_logprobs = wants_logprobs
        self._min_tokens = min_tokens
        self._splitter = splitter
        self._parser = parser
        self._held: list[TokenInfo] = []
        self._made = 0  # characters detokenised, of the answer
        self._shown = 0  # characters given out

    def start_behind(self, num_chars: int) -> None:
        """So many characters of an echoed prompt come first."""
        self._made = self._shown = num_chars

    def push(self, output: StepOutput) -> Delta:
        """The delta of one output. Its tokens after a stop string are forgotten."""
        delta = Delta(self.index)
        matched = self._take(output, delta)
        if matched:
            delta.finish_reason = self._reason()
        elif output.finish_reason is not None:
            is_cut = output.finish_reason == "length"
            matched = self._end(delta, is_cut=is_cut)
            delta.finish_reason = "length" if is_cut and not matched else self._reason()
        self.is_finished = delta.finish_reason is not None
        self._shown += len(delta.text)
        delta.tokens = self._release(is_cut=matched)
        return delta

    def skip(self, output: StepOutput) -> Delta:
        """The delta of an output of which nothing is shown; the choice ends here, for want of tokens."""
        self.is_finished = True
        return Delta(self.index, finish_reason="length")

    def _reason(self) -> FinishReason:
        return "tool_calls" if self._parser is not None and self._parser.num_calls else "stop"

    def _take(self, output: StepOutput, delta: Delta) -> bool:
        """Put the output's text into `delta`; True when that ends the answer: a stop string, enough calls."""
        if not (self._stops or self._wants_logprobs or self._splitter or self._parser):
            self.num_tokens += len(output.token_ids)
            delta.text = self._detokenizer.push(output.token_ids)
            self._made += len(delta.text)
            return False
        logprobs = output.logprobs or []
        for i, token_id in enumerate(output.token_ids):
            if i < len(logprobs):
                waiting = self._splitter.num_waiting if self._splitter else 0
                record = token_info(self._tokenizer, token_id, logprobs[i], self._made + waiting)
                self._held.append(record)
            self.num_tokens += 1
            made = self._part(token_id, delta) if self._splitter else self._detokenizer.push((token_id,))
            if self._add(made, delta, checks=self.num_tokens > self._min_tokens):
                return True
        return False

    def _add(self, made: str, delta: Delta, *, checks: bool) -> bool:
        """Put text of the answer into `delta`; True when that ends it. Stop strings count where `checks`."""
        self._made += len(made)
        parser = self._parser
        if parser is not None:
            made = self._without_calls(parser, made, delta)
        text, matched = self._checked(made) if checks else (made, False)
        delta.text += text
        if matched or parser is None or not parser.is_done:
            return matched
        delta.text += self._stops.flush() if self._stops is not None else ""
        return True

    def _without_calls(self, parser: ToolCallParser, made: str | None, delta: Delta) -> str:
        """The text beside the calls, whose pieces go into `delta`; None: no more is made."""
        given = parser.num_given
        part = parser.flush() if made is None else parser.push(made)
        for call in part.calls:
            if delta.tool_calls and delta.tool_calls[-1].index == call.index:
                delta.tool_calls[-1].arguments += call.arguments
            else:
                delta.tool_calls.append(call)
        self._shown += parser.num_given - given - len(part.text)
        return part.text

    def _part(self, token_id: int, delta: Delta) -> str:
        """What one token adds to the answer; what it adds to the thought goes into `delta`."""
        splitter = self._splitter
        assert splitter is not None
        tag = "" if splitter.is_over else self._tokenizer.hidden_tags.get(token_id, "")
        made = self._detokenizer.flush() + tag if tag else self._detokenizer.push((token_id,))
        was_over = splitter.is_over
        thought, text = splitter.push(made)
        delta.reasoning += thought
        if splitter.has_thought and not was_over:
            self.num_thought_tokens = self.num_tokens
        if made and splitter.phase in ("thought", "gap"):
            self._held.clear()  # of these tokens the answer holds nothing
        if splitter.phase == "answer":
            self._splitter = None
        return text

    def _checked(self, made: str) -> tuple[str, bool]:
        if self._stops is None:
            return made, False
        text, stop = self._stops.push(made)
        return text, stop is not None

    def _end(self, delta: Delta, *, is_cut: bool) -> bool:
        """Put what is still held anywhere into `delta`; True when a stop string was found in it.

        A call that is cut for want of tokens becomes text, but has no stop strings: it would have had none.
        """
        made = self._detokenizer.flush()
        if self._splitter is not None:
            made = self._end_thought(self._splitter, made, delta)
        self._made += len(made)
        unfinished = ""
        if self._parser is not None:
            made = self._without_calls(self._parser, made, delta)
            is_inside_call = self._parser.is_inside_call
            rest = self._without_calls(self._parser, None, delta)
            made, unfinished = (made, rest) if is_cut and is_inside_call else (made + rest, "")
        text, matched = self._checked(made)
        delta.text += text
        if not matched:
            delta.text += (self._stops.flush() if self._stops is not None else "") + unfinished
        return matched

    def _end_thought(self, splitter: ThoughtSplitter, made: str, delta: Delta) -> str:
        """The end of the answer; that of the thought goes into `delta`."""
        parts = (splitter.push(made), splitter.flush())
        delta.reasoning += "".join(thought for thought, _ in parts)
        text = "".join(text for _, text in parts)
        if not text:
            self._held.clear()
        return text

    def _release(self, *, is_cut: bool) -> list[TokenInfo]:
        """Token records whose text has been given out, in part at least."""
        if not self._held:
            return []
        if self._splitter is None and self._shown == self._made and not is_cut:
            released, self._held = self._held, []
            return released
        count = sum(info.text_offset < self._shown for info in self._held)
        released, self._held = self._held[:count], self._held[count:]
        return released


def token_info(
    tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs | None, text_offset: int
) -> TokenInfo:
    """The record of one token; without `logprobs` its probability is unknown (the first of a prompt)."""
    top = logprobs.top if logprobs is not None else []
    return TokenInfo(
        tokenizer.token_text(token_id),
        tokenizer.token_bytes(token_id),
        None if logprobs is None else logprobs.logprob,
        [(tokenizer.token_text(other), tokenizer.token_bytes(other), logprob) for other, logprob in top],
        text_offset,
    )
