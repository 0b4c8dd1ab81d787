"""How many prompt tokens fit into a step without making the running streams stutter.

Learns two things from measured steps: how long a step lasts that only decodes, and what a prompt token adds.
No step may take much longer than a second: between steps the engine hears cancellations and beats.
"""

from __future__ import annotations

_SMOOTHING = 0.2
"""Weight of the newest measurement."""

_RISE = 0.5
"""Weight when the cost per prompt token rises: a step that came out too long is felt, a short one is not."""

_FIRST_TOKENS = 64
"""Prompt tokens of the very first step, when nothing is known of the machine."""

_MEASURE_EVERY_STEPS = 64
"""After so many mixed steps in a row, one step without prefill measures anew what decoding costs."""

_LEAST_SHARE = 0.05
"""Of a mixed step's time, at least this part is charged to its prompt tokens, whatever noise says."""


class PrefillBudget:
    """Step-time controller. `prefill_tokens` asks before a step, `observe` learns after it."""

    def __init__(
        self, max_batch_tokens: int, min_chunk_tokens: int, max_step_stretch: float, max_step_s: float
    ) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._min_chunk_tokens = min_chunk_tokens
        self._stretch = max_step_stretch
        self._max_step_s = max_step_s
        self._bound = max_step_stretch  # of the step that was asked for last
        # Time of a decode-only step by magnitude of the batch (1, 2-3, 4-7 … sequences); 0.0: unknown.
        self._decode_s = [0.0] * (max_batch_tokens.bit_length() + 1)
        self._mixed_s_per_token = 0.0
        self._alone = _Pace()  # of prompt tokens in steps without decodes, which are more efficient
        self._ceiling_tokens = min_chunk_tokens  # doubles with every mixed step that kept the bound
        self._steps_since_measured = 0

    def prefill_tokens(self, num_decodes: int, num_prefills: int) -> int:
        """Prompt tokens for the next step, given how many sequences decode and how many await a first token.

        0 means: let this step only decode, to measure it.
        """
        left = self._max_batch_tokens - num_decodes
        if num_prefills == 0 or left <= 0:
            return max(0, left)
        if num_decodes == 0:
            return self._tokens_alone()
        decode_s = self._decode_time_s(num_decodes)
        if decode_s == 0.0 or self._steps_since_measured >= _MEASURE_EVERY_STEPS:
            return 0
        cost_s = self._mixed_s_per_token or self._alone.s_per_token
        if cost_s == 0.0:
            return min(left, self._min_chunk_tokens)
        # When more sequences wait for their first token than for their next, waiting weighs more than pace.
        pressure = max(1.0, num_prefills / num_decodes)
        self._bound = 1.0 + (self._stretch - 1.0) * pressure
        allowed = int(min((self._bound - 1.0) * decode_s, self._max_step_s - decode_s) / cost_s)
        ceiling = int(self._ceiling_tokens * pressure)
        return min(left, max(self._min_chunk_tokens, min(allowed, ceiling)))

    def observe(self, num_decodes: int, num_prompt_tokens: int, step_time_s: float) -> None:
        """Learn from a step that has been computed."""
        if step_time_s <= 0.0 or num_decodes + num_prompt_tokens == 0:
            return
        if num_decodes == 0:
            self._alone.observe(num_prompt_tokens, step_time_s)
        elif num_prompt_tokens == 0:
            index = num_decodes.bit_length()
            self._decode_s[index] = _blend(self._decode_s[index], step_time_s, _SMOOTHING)
            self._steps_since_measured = 0
        else:
            self._observe_mixed(num_decodes, num_prompt_tokens, step_time_s)

    def _tokens_alone(self) -> int:
        """Prompt tokens of a step in which nobody decodes: only cancellations and the heartbeat wait."""
        cost_s = self._alone.s_per_token or self._mixed_s_per_token
        fitting = (
            _FIRST_TOKENS if cost_s == 0.0 else int(min(self._max_step_s / cost_s, self._max_batch_tokens))
        )
        return min(self._max_batch_tokens, max(self._min_chunk_tokens, fitting))

    def _observe_mixed(self, num_decodes: int, num_prompt_tokens: int, step_time_s: float) -> None:
        self._steps_since_measured += 1
        decode_s = self._decode_time_s(num_decodes)
        if decode_s == 0.0:
            return
        prefill_s = max(step_time_s - decode_s, _LEAST_SHARE * step_time_s)
        cost_s = prefill_s / num_prompt_tokens
        weight = _RISE if cost_s > self._mixed_s_per_token else _SMOOTHING
        self._mixed_s_per_token = _blend(self._mixed_s_per_token, cost_s, weight)
        if num_prompt_tokens >= self._ceiling_tokens and step_time_s <= self._bound * decode_s:
            self._ceiling_tokens = min(self._max_batch_tokens, 2 * self._ceiling_tokens)

    def _decode_time_s(self, num_decodes: int) -> float:
        """Expected time of a decode-only step: of the nearest smaller batch known, else of a larger one."""
        index = num_decodes.bit_length()
        below = next((t for t in self._decode_s[index::-1] if t > 0.0), 0.0)
        return below or next((t for t in self._decode_s[index:] if t > 0.0), 0.0)


class _Pace:
    """Seconds per token over recent steps, in which long steps count for more.

    A step of few tokens costs mostly what every step costs: averaged as a rate, it would make the next long
    prompt crawl.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._time_s = 0.0

    @property
    def s_per_token(self) -> float:
        """0.0 before the first observation."""
        return self._time_s / self._tokens if self._tokens else 0.0

    def observe(self, num_tokens: int, time_s: float) -> None:
        """Learn from one step; a hiccup counts as twice what was expected."""
        if self._tokens:
            # Short steps may cost many times their tokens' worth, and weigh little.
            time_s = min(time_s, max(2.0 * num_tokens * self.s_per_token, 0.5 * self._time_s))
        keep = 1.0 - _SMOOTHING
        self._tokens = keep * self._tokens + num_tokens
        self._time_s = keep * self._time_s + time_s


def _blend(old: float, new: float, weight: float) -> float:
    """Exponentially weighted mean that starts at the first value; outliers count as twice the mean."""
    return new if old == 0.0 else old + weight * (min(new, 2.0 * old) - old)
