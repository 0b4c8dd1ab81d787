"""Decodes one choice: tokens to text, reasoning, tool calls, stop strings and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from backend.sampling.stop import StopMatcher
from backend.tokenizer import Detokenizer, Tokenizer
from backend.types import StepOutput, TokenLogprobs
from gateway.answer import Delta, FinishReason, TokenInfo
from gateway.providers.engine.harmony_splitter import HarmonySplitter
from gateway.providers.engine.reasoning_splitter import ReasoningSplitter
from gateway.tool_calls.parser import ToolCallParser

Splitter = ReasoningSplitter | HarmonySplitter


class ChoiceDecoder:
    """Turns the step outputs of one sequence into deltas, until `is_finished`.

    Order: detokenizer → reasoning splitter → tool-call parser → stop matcher. So stop strings are matched in
    the answer's text only, and log-probabilities are those of the answer, tool calls included. Token records
    are held back with their text, and dropped with text that a stop string cuts off.
    """

    __slots__ = (
        "_detokenizer",
        "_held_tokens",
        "_min_tokens",
        "_num_decoded_chars",
        "_num_released_chars",
        "_parser",
        "_splitter",
        "_stop_string",
        "_stops",
        "_tokenizer",
        "_wants_logprobs",
        "index",
        "is_finished",
        "num_reasoning_tokens",
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
        splitter: Splitter | None = None,
        parser: ToolCallParser | None = None,
    ) -> None:
        """Stop strings are matched after `min_tokens` tokens.

        Without a `splitter` all text is the answer's, without a `parser` it holds no tool calls.
        """
        self.index = index
        self.is_finished = False
        self.num_tokens = 0
        self.num_reasoning_tokens = 0  # of num_tokens, including the tag that ends the reasoning
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops) if stops else None
        self._wants_logprobs = wants_logprobs
        self._min_tokens = min_tokens
        self._splitter = splitter
        self._parser = parser
        self._stop_string = ""  # the one that ended the answer
        self._held_tokens: list[TokenInfo] = []
        self._num_decoded_chars = 0  # of the answer
        self._num_released_chars = 0

    def start_after(self, num_chars: int) -> None:
        """Count `num_chars` characters of an echoed prompt as released already."""
        self._num_decoded_chars = self._num_released_chars = num_chars

    def push(self, output: StepOutput) -> Delta:
        """The delta of one output. Tokens after a stop string are dropped."""
        delta = Delta(self.index)
        matched = self._decode(output, delta)
        if matched:
            delta.finish_reason = self._finish_reason()
        elif output.finish_reason is not None:
            is_cut = output.finish_reason == "length"
            matched = self._flush(delta, is_cut=is_cut)
            delta.finish_reason = "length" if is_cut and not matched else self._finish_reason()
        self.is_finished = delta.finish_reason is not None
        delta.stop_string = self._stop_string
        self._num_released_chars += len(delta.text)
        delta.tokens = self._release_tokens(is_cut=matched)
        return delta

    def skip(self, output: StepOutput) -> Delta:
        """The delta of an output that is not shown; the choice ends here, at its token limit."""
        self.is_finished = True
        return Delta(self.index, finish_reason="length")

    def _finish_reason(self) -> FinishReason:
        return "tool_calls" if self._parser is not None and self._parser.num_calls else "stop"

    def _decode(self, output: StepOutput, delta: Delta) -> bool:
        """Add the output's text to `delta`; True when a stop string or the last tool call ends the answer."""
        if not (self._stops or self._wants_logprobs or self._splitter or self._parser):
            self.num_tokens += len(output.token_ids)
            delta.text = self._detokenizer.push(output.token_ids)
            self._num_decoded_chars += len(delta.text)
            return False
        logprobs = output.logprobs or []
        for i, token_id in enumerate(output.token_ids):
            if i < len(logprobs):
                num_waiting = self._splitter.num_waiting_chars if self._splitter else 0
                offset = self._num_decoded_chars + num_waiting
                self._held_tokens.append(token_info(self._tokenizer, token_id, logprobs[i], offset))
            self.num_tokens += 1
            splitter = self._splitter
            text = self._split(splitter, token_id, delta) if splitter else self._detokenizer.push((token_id,))
            if self._add(text, delta, matches_stops=self.num_tokens > self._min_tokens):
                return True
        return False

    def _add(self, text: str, delta: Delta, *, matches_stops: bool) -> bool:
        """Add text of the answer to `delta`; True when that ends the answer."""
        self._num_decoded_chars += len(text)
        parser = self._parser
        if parser is not None:
            text = self._without_calls(parser, text, delta)
        text, matched = self._match_stops(text) if matches_stops else (text, False)
        delta.text += text
        if matched or parser is None or not parser.is_done:
            return matched
        delta.text += self._stops.flush() if self._stops is not None else ""
        return True

    def _without_calls(self, parser: ToolCallParser, text: str | None, delta: Delta) -> str:
        """The text outside of tool calls, whose pieces go to `delta`; None: the text has ended."""
        num_settled = parser.num_settled_chars
        parsed = parser.flush() if text is None else parser.push(text)
        for call in parsed.calls:
            if delta.tool_calls and delta.tool_calls[-1].index == call.index:
                delta.tool_calls[-1].arguments += call.arguments
            else:
                delta.tool_calls.append(call)
        self._num_released_chars += parser.num_settled_chars - num_settled - len(parsed.text)
        return parsed.text

    def _split(self, splitter: Splitter, token_id: int, delta: Delta) -> str:
        """What one token adds to the answer; what it adds to the reasoning goes to `delta`."""
        tag = self._tokenizer.hidden_tags.get(token_id, "") if splitter.reads_tags else ""
        decoded = self._detokenizer.flush() + tag if tag else self._detokenizer.push((token_id,))
        was_over, was_text = splitter.is_over, splitter.phase == "text"
        reasoning, text = splitter.push(decoded)
        delta.reasoning += reasoning
        if splitter.has_reasoning and not was_over:
            self.num_reasoning_tokens = self.num_tokens
        is_outside = splitter.phase in ("reasoning", "gap") and not splitter.num_waiting_chars
        begins_text = splitter.phase == "text" and not (was_text or text)
        if decoded and (is_outside or begins_text or (tag and splitter.phase == "text")):
            self._drop_held()
        if splitter.phase == "answer":
            self._splitter = None
        return text

    def _drop_held(self) -> None:
        """Drop the records of tokens that are no part of the answer."""
        self._held_tokens = [info for info in self._held_tokens if info.text_offset < self._num_decoded_chars]

    def _match_stops(self, text: str) -> tuple[str, bool]:
        if self._stops is None:
            return text, False
        shown, stop = self._stops.push(text)
        self._stop_string = stop or ""
        return shown, stop is not None

    def _flush(self, delta: Delta, *, is_cut: bool) -> bool:
        """Add everything that is still held back to `delta`; True when a stop string was found in it.

        A tool call that is cut at the token limit becomes text, without stop strings: as a call it had none.
        """
        text = self._detokenizer.flush()
        if self._splitter is not None:
            text = self._flush_splitter(self._splitter, text, delta)
        self._num_decoded_chars += len(text)
        unfinished = ""
        if self._parser is not None:
            text = self._without_calls(self._parser, text, delta)
            is_inside_call = self._parser.is_inside_call
            rest = self._without_calls(self._parser, None, delta)
            text, unfinished = (text, rest) if is_cut and is_inside_call else (text + rest, "")
        shown, matched = self._match_stops(text)
        delta.text += shown
        if not matched:
            delta.text += (self._stops.flush() if self._stops is not None else "") + unfinished
        return matched

    def _flush_splitter(self, splitter: Splitter, text: str, delta: Delta) -> str:
        """The end of the answer; that of the reasoning goes to `delta`."""
        pieces = [splitter.push(text)]
        if (
            self._parser is not None
            and isinstance(splitter, ReasoningSplitter)
            and (call := splitter.take_call())
        ):
            rest = self._without_calls(self._parser, call, delta)
            rest += self._without_calls(self._parser, None, delta)
            pieces.append((splitter.shown(rest), ""))
        pieces.append(splitter.flush())
        delta.reasoning += "".join(reasoning for reasoning, _ in pieces)
        answer = "".join(answer for _, answer in pieces)
        if not answer:
            self._drop_held()
        return answer

    def _release_tokens(self, *, is_cut: bool) -> list[TokenInfo]:
        """Token records whose text has been released, at least its first character."""
        held = self._held_tokens
        if not held:
            return []
        if self._splitter is None and self._num_released_chars == self._num_decoded_chars and not is_cut:
            self._held_tokens = []
            return held
        count = sum(info.text_offset < self._num_released_chars for info in held)
        self._held_tokens = held[count:]
        return held[:count]


def token_info(
    tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs | None, text_offset: int
) -> TokenInfo:
    """The record of one token; without `logprobs` its probability is unknown (a prompt's first token)."""
    top = logprobs.top if logprobs is not None else []
    return TokenInfo(
        tokenizer.token_text(token_id),
        tokenizer.token_bytes(token_id),
        None if logprobs is None else logprobs.logprob,
        [(tokenizer.token_text(other), tokenizer.token_bytes(other), logprob) for other, logprob in top],
        text_offset,
    )
