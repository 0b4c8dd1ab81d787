"""One choice on its way from the engine's tokens to deltas: text, stop strings, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from backend.sampling.stop import StopMatcher
from backend.tokenizer import Detokenizer, Tokenizer
from backend.types import StepOutput, TokenLogprobs
from gateway.providers.base import Delta, FinishReason, TokenInfo


class Choice:
    """Turns step outputs of one sequence into deltas, until `is_finished`; `num_tokens` is what they took.

    Token records are held back with the text they belong to, and dropped with text that a stop string cuts.
    """

    __slots__ = (
        "_detokenizer",
        "_held",
        "_made",
        "_min_tokens",
        "_shown",
        "_stops",
        "_tokenizer",
        "_wants_logprobs",
        "index",
        "is_finished",
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
        start_offset: int = 0,
    ) -> None:
        """Stop strings are looked for after `min_tokens`; `start_offset` counts echoed characters."""
        self.index = index
        self.is_finished = False
        self.num_tokens = 0
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops) if stops else None
        self._wants_logprobs = wants_logprobs
        self._min_tokens = min_tokens
        self._held: list[TokenInfo] = []
        self._made = start_offset  # characters detokenised
        self._shown = start_offset  # characters given out

    def push(self, output: StepOutput) -> Delta:
        """The delta of one output. Its tokens after a stop string are forgotten."""
        text, matched = self._text_of(output)
        reason: FinishReason | None = None
        if matched:
            reason = "stop"
        elif output.finish_reason is not None:
            tail, matched = self._end()
            text += tail
            reason = "length" if output.finish_reason == "length" and not matched else "stop"
        self.is_finished = reason is not None
        self._shown += len(text)
        return Delta(self.index, text, self._release(is_cut=matched), reason)

    def skip(self, output: StepOutput) -> Delta:
        """The delta of an output of which nothing is shown; the choice ends here, for want of tokens."""
        self.is_finished = True
        return Delta(self.index, finish_reason="length")

    def _text_of(self, output: StepOutput) -> tuple[str, bool]:
        if self._stops is None and not self._wants_logprobs:
            self.num_tokens += len(output.token_ids)
            return self._checked(self._detokenizer.push(output.token_ids))
        pieces = []
        logprobs = output.logprobs or []
        for i, token_id in enumerate(output.token_ids):
            if i < len(logprobs):
                self._held.append(token_info(self._tokenizer, token_id, logprobs[i], self._made))
            made = self._detokenizer.push((token_id,))
            self.num_tokens += 1
            text, matched = self._checked(made) if self.num_tokens > self._min_tokens else self._free(made)
            pieces.append(text)
            if matched:
                return "".join(pieces), True
        return "".join(pieces), False

    def _free(self, made: str) -> tuple[str, bool]:
        """Text before `min_tokens`: no stop string may end it."""
        self._made += len(made)
        return made, False

    def _checked(self, made: str) -> tuple[str, bool]:
        self._made += len(made)
        if self._stops is None:
            return made, False
        text, stop = self._stops.push(made)
        return text, stop is not None

    def _end(self) -> tuple[str, bool]:
        """What detokeniser and stop matcher still hold."""
        text, matched = self._checked(self._detokenizer.flush())
        if self._stops is not None and not matched:
            text += self._stops.flush()
        return text, matched

    def _release(self, *, is_cut: bool) -> list[TokenInfo]:
        """Token records whose text has been given out, in part at least."""
        if not self._held:
            return []
        if self._shown == self._made and not is_cut:
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
