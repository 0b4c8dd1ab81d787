"""Quotes: what a prompt would cost an engine now, predicted in the gateway from what the engine publishes.

The engine sends the digests of its cached pages and its measured speeds with heartbeats, so that a quote
takes no message and no time of its step. It may be wrong by what has changed since the last heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backend.kv.prefix_tree import page_digest, root_digest
from backend.server.engine_messages import DIGEST_BYTES, CachedPages, EngineStats, Hello
from backend.types import PAGE_TOKENS

DEFAULT_OUTPUT_TOKENS = 64
"""Expected length of an answer of an engine that has finished none yet."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Prediction for one request. Times are 0.0 while the engine has not measured its speed."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, in the prefix cache
    queue_tokens: int  # prompt tokens of requests that wait before it
    ttft_s: float  # time to first token
    cost_s: float  # the machine's work, as its share of batches: not longer on a busy machine


class PageIndex:
    """The published pages of one engine."""

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def update(self, message: CachedPages) -> None:
        """Apply changes."""
        self._digests.difference_update(_split(message.evicted))
        self._digests.update(_split(message.published))

    def cached_tokens(self, root: bytes, token_ids: Sequence[int], *, has_gaps: bool = False) -> int:
        """Tokens of the longest cached prefix, from the chain's root digest; never the last token.

        `has_gaps`: a hit may end behind pages with which none does.
        """
        digest, found = root, 0
        for end in range(PAGE_TOKENS, len(token_ids), PAGE_TOKENS):
            digest = page_digest(digest, token_ids[end - PAGE_TOKENS : end])
            if digest[:DIGEST_BYTES] in self._digests:
                found = end
            elif not has_gaps or not self._digests:
                break
        return found


def predict(
    hello: Hello,
    stats: EngineStats,
    pages: PageIndex,
    token_ids: Sequence[int],
    *,
    tenant_salt: str = "",
    adapter: str = "",
    max_tokens: int | None = None,
) -> Quote:
    """The quote for a prompt. `adapter`: its digest; `max_tokens`: bounds the expected answer."""
    root = root_digest(hello.revision, hello.kv_dtype, tenant_salt, adapter)
    cached = pages.cached_tokens(root, token_ids, has_gaps=hello.has_states)
    prefill_s = (len(token_ids) - cached) * stats.prefill_s_per_token
    queue_s = max(
        stats.waiting_tokens * stats.prefill_s_per_token, stats.num_waiting * stats.admission_interval_s
    )
    output = _expected_output(stats)
    output = output if max_tokens is None else min(output, max_tokens)
    decode_s = output * stats.decode_step_s / max(1, stats.num_running)
    ttft_s = queue_s + prefill_s + stats.decode_step_s
    work = stats.work_s_total / stats.step_time_sum_s if stats.step_time_sum_s > 0 else 1.0
    cost_s = (prefill_s + decode_s) * min(1.0, work)
    return Quote(len(token_ids), cached, stats.waiting_tokens, ttft_s, cost_s)


def _expected_output(stats: EngineStats) -> float:
    finished = sum(stats.requests_total.get(reason, 0) for reason in ("stop", "length"))
    return stats.generated_tokens_total / finished if finished else DEFAULT_OUTPUT_TOKENS


def _split(digests: bytes) -> Iterator[bytes]:
    return (digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
