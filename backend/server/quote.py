"""Quotes: what a prompt would cost an engine now, predicted in the gateway from what the engine publishes.

The engine sends the digests of its cached pages and its measured speeds with heartbeats, so that a quote
takes no message and no time of its step. It may be wrong by what has changed since the last heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from backend.kv.prefix_tree import page_digests, root_digest
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
    """The pages that the replicas of one model have published: a bit mask of replicas by digest."""

    __slots__ = ("_free", "_masks", "_num_replicas")

    def __init__(self) -> None:
        self._masks: dict[bytes, int] = {}
        self._num_replicas = 0
        self._free: list[int] = []  # numbers of replicas that are no more

    def add_replica(self) -> PublishedPages:
        """What one more replica publishes."""
        if self._free:
            return PublishedPages(self, self._masks, self._free.pop())
        self._num_replicas += 1
        return PublishedPages(self, self._masks, self._num_replicas - 1)

    def release(self, number: int) -> None:
        """The replica of this number publishes nothing any more: another one may have it."""
        self._free.append(number)

    def cached_tokens(self, digests: Iterable[bytes], *, has_gaps: bool = False) -> list[int]:
        """Tokens of a prompt's longest cached prefix, by the number of each replica's pages.

        `digests` is `prefix_digests`.

        `has_gaps`: a hit may end behind pages with which none does.
        """
        found = [0] * self._num_replicas
        if has_gaps:
            for end, digest in enumerate(digests if self._masks else (), 1):
                _note(found, self._masks.get(digest, 0), end * PAGE_TOKENS)
            return found
        holders, num_tokens = (1 << self._num_replicas) - 1, 0
        masks = self._masks
        for digest in digests:
            still = holders & masks.get(digest, 0)
            if still != holders:
                _note(found, holders ^ still, num_tokens)
                holders = still
                if not holders:
                    return found
            num_tokens += PAGE_TOKENS
        _note(found, holders, num_tokens)
        return found


def _note(found: list[int], replicas: int, num_tokens: int) -> None:
    while replicas:
        lowest = replicas & -replicas
        found[lowest.bit_length() - 1] = num_tokens
        replicas ^= lowest


class PublishedPages:
    """One replica's part of a `PageIndex`."""

    __slots__ = ("_bit", "_length", "_masks", "index", "number")

    def __init__(self, index: PageIndex, masks: dict[bytes, int], number: int) -> None:
        self.index = index
        self._masks = masks
        self.number = number
        self._bit = 1 << number
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def update(self, message: CachedPages) -> None:
        """Apply changes."""
        masks, bit = self._masks, self._bit
        for digest in _split(message.evicted):
            self._remove(digest)
        for digest in _split(message.published):
            mask = masks.get(digest, 0)
            self._length += not mask & bit
            masks[digest] = mask | bit

    def clear(self) -> None:
        """Forget all: the replica is gone."""
        for digest in [digest for digest, mask in self._masks.items() if mask & self._bit]:
            self._remove(digest)

    def release(self) -> None:
        """The replica is gone for good."""
        self.clear()
        self.index.release(self.number)

    def _remove(self, digest: bytes) -> None:
        mask = self._masks.get(digest, 0)
        if mask & self._bit:
            self._length -= 1
            if mask == self._bit:
                del self._masks[digest]
            else:
                self._masks[digest] = mask ^ self._bit


def prefix_digests(
    hello: Hello, token_ids: Sequence[int], tenant_salt: str = "", adapter: str = ""
) -> Iterator[bytes]:
    """The published form of a prompt's pages; never of the last token's. `adapter` is its digest."""
    root = root_digest(hello.revision, hello.kv_dtype, tenant_salt, adapter)
    num_tokens = (len(token_ids) - 1) // PAGE_TOKENS * PAGE_TOKENS
    return page_digests(root, token_ids[:num_tokens], DIGEST_BYTES)


def predict(
    stats: EngineStats,
    prompt_tokens: int,
    cached_tokens: int,
    *,
    max_tokens: int | None = None,
    sent_tokens: int = 0,
    num_sent: int = 0,
) -> Quote:
    """The quote for a prompt. `max_tokens` bounds the expected answer.

    `sent_tokens` and `num_sent` count what the engine was sent since it published `stats`.
    """
    prefill_s = (prompt_tokens - cached_tokens) * stats.prefill_s_per_token
    output = _expected_output(stats)
    output = output if max_tokens is None else min(output, max_tokens)
    decode_s = output * stats.decode_step_s / max(1, stats.num_running)
    ttft_s = prefill_s + wait_s(stats, sent_tokens, num_sent)
    work = stats.work_s_total / stats.step_time_sum_s if stats.step_time_sum_s > 0 else 1.0
    cost_s = (prefill_s + decode_s) * min(1.0, work)
    return Quote(prompt_tokens, cached_tokens, stats.waiting_tokens + sent_tokens, ttft_s, cost_s)


def wait_s(stats: EngineStats, sent_tokens: int = 0, num_sent: int = 0) -> float:
    """What a first token waits for apart from its prompt: the queue, and one step."""
    num_waiting = stats.num_waiting + max(0, num_sent - max(0, stats.max_running - stats.num_running))
    queue_s = max(
        (stats.waiting_tokens + sent_tokens) * stats.prefill_s_per_token,
        num_waiting * stats.admission_interval_s,
    )
    return queue_s + stats.decode_step_s


def _expected_output(stats: EngineStats) -> float:
    finished = sum(stats.requests_total.get(reason, 0) for reason in ("stop", "length"))
    return stats.generated_tokens_total / finished if finished else DEFAULT_OUTPUT_TOKENS


def _split(digests: bytes) -> Iterator[bytes]:
    return (digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
