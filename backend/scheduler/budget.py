"""Chunked-prefill budget: how many prompt tokens a step may take without stalling the streams that decode.

Measures the time of decode-only steps and the added time per prompt token, both as exponential moving
averages. Steps are bounded in time (`max_step_s`), because cancellations and heartbeats are handled between
steps.
"""

from __future__ import annotations

import math

_EMA_WEIGHT = 0.2
"""Weight of the newest sample in the moving averages."""

_RISING_EMA_WEIGHT = 0.5
"""Weight when the cost per prompt token rises: overlong steps stall streams, short ones do not."""

_INITIAL_TOKENS = 64
"""Prompt tokens of the very first step, before anything was measured."""

_EFFICIENT_TOKENS = 256
"""Prompt tokens beyond which a step costs no less per token: their matrices are large enough."""

_REMEASURE_STEPS = 64
"""After this many consecutive mixed steps, one decode-only step refreshes the decode time."""

_MIN_PREFILL_SHARE = 0.05
"""Least fraction of a mixed step's time that is attributed to its prompt tokens, to be robust to noise."""


class PrefillBudget:
    """Step-time controller: call `prefill_tokens` before a step and `observe` after it."""

    def __init__(
        self,
        max_batch_tokens: int,
        min_chunk_tokens: int,
        max_step_stretch: float,
        max_step_s: float,
        max_shared_step_s: float = math.inf,
    ) -> None:
        """`max_shared_step_s`: of a step that tenants share, or that has many prompt tokens."""
        self._max_batch_tokens = max_batch_tokens
        self._min_chunk_tokens = min_chunk_tokens
        self._stretch = max_step_stretch
        self._max_step_s = max_step_s
        self._max_shared_step_s = min(max_step_s, max_shared_step_s)
        self.is_shared = False  # between tenants; set before `prefill_tokens`
        self._bound = max_step_stretch  # of the last step planned
        # Time of a decode-only step by power of two of the batch size (1, 2-3, 4-7 …); 0.0: not measured.
        self._decode_s = [0.0] * (max_batch_tokens.bit_length() + 1)
        self._mixed_s_per_token = 0.0
        self._prefill_only = _PrefillCost()  # cheaper per token than prefill in mixed steps
        self._ceiling_tokens = min_chunk_tokens  # slow start: doubles with every mixed step within the bound
        self._steps_since_measured = 0

    @property
    def prefill_s_per_token(self) -> float:
        """Measured seconds per prompt token, beside decodes if there have been any; 0.0: not measured."""
        return self._mixed_s_per_token or self._prefill_only.s_per_token

    def decode_s(self, num_decodes: int) -> float:
        """Measured seconds of a decode-only step of about this batch size; 0.0: not measured."""
        return self._decode_time_s(max(1, num_decodes))

    def prefill_tokens(self, num_decodes: int, num_prefills: int) -> int:
        """Return the prompt tokens for the next step.

        `num_decodes` sequences decode in it and `num_prefills` wait for their first token. 0 means a
        decode-only step, to measure its time.
        """
        left = self._max_batch_tokens - num_decodes
        if num_prefills == 0 or left <= 0:
            return max(0, left)
        if num_decodes == 0:
            return self._prefill_only_tokens()
        decode_s = self._decode_time_s(num_decodes)
        if decode_s == 0.0 or self._steps_since_measured >= _REMEASURE_STEPS:
            return 0
        cost_s = self._mixed_s_per_token or self._prefill_only.s_per_token
        if cost_s == 0.0:
            return min(left, self._min_chunk_tokens)
        # With more prefills than decodes, time to first token outweighs inter-token latency.
        pressure = max(1.0, num_prefills / num_decodes)
        self._bound = 1.0 + (self._stretch - 1.0) * pressure
        allowed = min(int((self._bound - 1.0) * decode_s / cost_s), self._fitting(cost_s, decode_s))
        ceiling = int(self._ceiling_tokens * pressure)
        return min(left, max(self._min_chunk_tokens, min(allowed, ceiling)))

    def observe(self, num_decodes: int, num_prompt_tokens: int, step_time_s: float) -> None:
        """Update the averages with the measured time of a step."""
        if step_time_s <= 0.0 or num_decodes + num_prompt_tokens == 0:
            return
        if num_decodes == 0:
            self._prefill_only.observe(num_prompt_tokens, step_time_s)
        elif num_prompt_tokens == 0:
            index = num_decodes.bit_length()
            self._decode_s[index] = _ema(self._decode_s[index], step_time_s, _EMA_WEIGHT)
            self._steps_since_measured = 0
        else:
            self._observe_mixed(num_decodes, num_prompt_tokens, step_time_s)

    def _prefill_only_tokens(self) -> int:
        """Return the prompt tokens of a step without decodes, bounded by its time alone."""
        cost_s = self._prefill_only.s_per_token or self._mixed_s_per_token
        fitting = _INITIAL_TOKENS if cost_s == 0.0 else self._fitting(cost_s)
        return min(self._max_batch_tokens, max(self._min_chunk_tokens, fitting))

    def _fitting(self, cost_s: float, decode_s: float = 0.0) -> int:
        """Prompt tokens that fit a step's time. It is short where that costs nothing: others may arrive."""
        short = (self._max_shared_step_s - decode_s) / cost_s
        if self.is_shared or short >= _EFFICIENT_TOKENS:
            return int(min(short, self._max_batch_tokens))
        return int(min((self._max_step_s - decode_s) / cost_s, _EFFICIENT_TOKENS))

    def _observe_mixed(self, num_decodes: int, num_prompt_tokens: int, step_time_s: float) -> None:
        self._steps_since_measured += 1
        decode_s = self._decode_time_s(num_decodes)
        if decode_s == 0.0:
            return
        prefill_s = max(step_time_s - decode_s, _MIN_PREFILL_SHARE * step_time_s)
        cost_s = prefill_s / num_prompt_tokens
        weight = _RISING_EMA_WEIGHT if cost_s > self._mixed_s_per_token else _EMA_WEIGHT
        self._mixed_s_per_token = _ema(self._mixed_s_per_token, cost_s, weight)
        if num_prompt_tokens >= self._ceiling_tokens and step_time_s <= self._bound * decode_s:
            self._ceiling_tokens = min(self._max_batch_tokens, 2 * self._ceiling_tokens)

    def _decode_time_s(self, num_decodes: int) -> float:
        """Return the decode time measured at this batch size, else at the nearest smaller or larger one."""
        index = num_decodes.bit_length()
        smaller = next((t for t in self._decode_s[index::-1] if t > 0.0), 0.0)
        return smaller or next((t for t in self._decode_s[index:] if t > 0.0), 0.0)


class _PrefillCost:
    """Seconds per token over recent prefill-only steps, weighted by their tokens.

    The fixed cost dominates a step of few tokens: averaging its rate would make the next long prompt crawl.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._time_s = 0.0

    @property
    def s_per_token(self) -> float:
        """0.0 before the first observation."""
        return self._time_s / self._tokens if self._tokens else 0.0

    def observe(self, num_tokens: int, time_s: float) -> None:
        """Add one step; an outlier is clipped to twice the expected time."""
        if self._tokens:
            # The second bound lets short steps through: the fixed cost exceeds their expected time, and they
            # weigh little.
            time_s = min(time_s, max(2.0 * num_tokens * self.s_per_token, 0.5 * self._time_s))
        keep = 1.0 - _EMA_WEIGHT
        self._tokens = keep * self._tokens + num_tokens
        self._time_s = keep * self._time_s + time_s


def _ema(old: float, new: float, weight: float) -> float:
    """Exponential moving average that starts at the first sample and clips samples to twice the average."""
    return new if old == 0.0 else old + weight * (min(new, 2.0 * old) - old)
