"""The scheduler: how many tokens each sequence computes in the next step.

Running sequences come before waiting ones, decodes before prompts, and several prompts progress together.
There are no prefill and decode phases: every sequence, preempted ones included, advances from
`num_computed_tokens` to the end of its tokens. Background sequences get what online ones leave over: they
wait behind them, are preempted for them, and are left out of steps that compute an online prompt. Tenants
share rows, pages and prompt tokens (`tenants.py`). One thread calls schedule → (forward) → append_token for
each accepted draft token → commit → append_token or finish for each sampled sequence.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from backend.errors import PromptTooLong, RequestError
from backend.kv.manager import KVManager, PrefixMatch, pages_for
from backend.lora.slots import AdapterSlots
from backend.scheduler.background import BackgroundBudget
from backend.scheduler.budget import PrefillBudget
from backend.scheduler.config import SchedulerConfig
from backend.scheduler.drafts import add_drafts
from backend.scheduler.queue import WaitingQueue
from backend.scheduler.tenants import Shares, Tenant
from backend.types import PAGE_TOKENS, Draft, FinishReason, Plan, ScheduledChunk, Sequence, SequenceStatus

_NUM_PREFILL_SHARES = 4
"""A step's prompt tokens are first handed out in shares of 1/4, or 1/n to fewer than four prompts."""

_MAX_PREFILLING = 8
"""Prompts in progress, shared by tenants, beyond which none is admitted unless the step has tokens left."""

_MAX_SKIPPED = 16
"""Waiting sequences that one step may skip."""


class Scheduler:
    """Continuous batching under one token budget. Owns queue, rows and statuses; plain Python, one thread.

    A plan without chunks has nothing to compute. If work remains nevertheless (the only running sequence was
    just preempted), the next call plans it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        clock: Callable[[], float] = time.monotonic,
        adapters: AdapterSlots | None = None,
    ) -> None:
        self.preemptions_total = 0
        self._config = config
        self._kv = kv
        self._adapters = adapters
        self._clock = clock
        self._queue = WaitingQueue(config.max_queue)
        self._running: dict[str, Sequence] = {}  # in order of admission: the newest is last
        self._num_background = 0  # of those
        self._is_shared = False  # several tenants have sequences of the same priority
        self._shares = Shares(config.max_running, kv.num_pages)
        self._free_rows = list(range(config.max_running - 1, -1, -1))
        self._oldest_first = False
        self.budget = PrefillBudget(
            config.max_batch_tokens,
            config.min_chunk_tokens,
            config.max_step_stretch,
            config.max_step_s,
            config.max_shared_step_s,
        )
        self._background_budget = BackgroundBudget(
            config.max_batch_tokens,
            config.min_chunk_tokens,
            config.max_background_step_s,
            config.max_background_share,
        )

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, new or preempted."""
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """Sequences that own a row."""
        return len(self._running)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that the sequences in the queue have to compute, prefix hits included."""
        return sum(sequence.num_uncomputed_tokens for sequence in self._queue.sequences())

    @property
    def admission_interval_s(self) -> float:
        """Measured time between two admissions from a queue that was not empty; 0.0: none yet."""
        return self._queue.departure_interval_s

    @property
    def num_joining(self) -> int:
        """Waiting sequences for which a row is free."""
        return min(len(self._queue), len(self._free_rows))

    @property
    def has_prompts(self) -> bool:
        """True if the next step is likely to include prefill."""
        if len(self._queue) and self._free_rows:
            return True
        return any(sequence.num_uncomputed_tokens > 1 for sequence in self._running.values())

    @property
    def has_work(self) -> bool:
        """True while any sequence waits or runs."""
        return bool(self._running) or len(self._queue) > 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises PromptTooLong if it can never fit, RequestError if its id is in use or its prompt is empty, and
        QueueFull if the queue is at its bound.
        """
        self._check_fits(sequence)
        request_id = sequence.request.request_id
        if request_id in self._running or request_id in self._queue:
            raise RequestError(f"request id {request_id!r} is in use; give every request its own")
        if sequence.num_output_tokens:  # resumed: an engine that is gone had admitted it
            self._queue.push_front(sequence)
        else:
            self._queue.push(sequence)
        if sequence.arrival_s < 0.0:
            sequence.arrival_s = self._clock()

    def abort(self, request_id: str) -> Sequence | None:
        """Remove a sequence and free its row and pages at once; return None if the id is unknown."""
        sequence = self._queue.remove(request_id) or self._running.get(request_id)
        if sequence is not None:
            self._retire(sequence, "abort")
        return sequence

    def schedule(self, drafts: Mapping[Sequence, Draft] | None = None) -> Plan:
        """Plan the next step and allocate its pages and rows. A step that preempts admits no sequence.

        `drafts` holds draft tokens of decoding sequences; they get the tokens and pages that are left over.
        """
        preempted: list[Sequence] = []
        self._begin_sharing()
        if self._num_background:
            self._make_way(preempted)
        if self._is_shared:
            self._share_out(preempted)
        chunks, prefills = self._plan_decodes(preempted)
        if self._num_background:
            chunks, prefills = self._pause_background(chunks, prefills)
        if self._adapters is not None and self._adapters.is_used:
            # Rows grouped by adapter need no gather in the LoRA layers.
            chunks.sort(key=lambda chunk: chunk.sequence.adapter_slot)
        if not chunks and prefills:
            self._make_room(prefills[0], preempted)  # guarantee progress
        tokens = self._prompt_tokens(chunks, prefills)
        if preempted:
            prefills = [sequence for sequence in prefills if sequence.status is SequenceStatus.RUNNING]
        elif len(self._queue):
            self._admit(prefills, tokens)
            if self._num_background:
                chunks, prefills = self._pause_background(chunks, prefills)
                tokens = self._prompt_tokens(chunks, prefills)
        if prefills and tokens:
            chunks += self._plan_prefills(prefills, tokens)
        num_drafts = add_drafts(chunks, drafts, self._kv, self._config) if drafts else 0
        return Plan(chunks, preempted, num_drafts)

    def commit(
        self, plan: Plan, step_time_s: float, accepted: Mapping[Sequence, list[int]] | None = None
    ) -> None:
        """Mark the plan's tokens as computed and publish full pages. Call after the forward pass.

        Of draft tokens only the `accepted` ones, already appended, count; pages of rejected ones are freed.
        """
        advance, running, num_decodes = self._kv.advance, SequenceStatus.RUNNING, 0
        for chunk in plan.chunks:
            sequence = chunk.sequence
            num_decodes += chunk.num_tokens - len(chunk.draft) == 1
            if sequence.status is not running:
                continue
            if not chunk.draft:
                advance(sequence, chunk.num_tokens)
                continue
            advance(sequence, 1 + (len(accepted.get(sequence, ())) if accepted else 0))
            self._kv.trim(sequence)
        num_prompt_tokens = plan.num_tokens - plan.num_drafts - num_decodes
        background = [chunk for chunk in plan.chunks if chunk.sequence.request.priority]
        if any(chunk.num_tokens - len(chunk.draft) > 1 for chunk in background):
            self._background_budget.observe_prompts(num_prompt_tokens, step_time_s)
        else:
            self.budget.observe(num_decodes, num_prompt_tokens, step_time_s)
        if self._queue.online.is_shared:
            self._queue.online.charge(chunk for chunk in plan.chunks if not chunk.sequence.request.priority)
        if background and self._queue.background.is_shared:
            self._queue.background.charge(background)
        if self._num_background:
            self._charge_background(len(plan.chunks) - len(background), len(background), step_time_s)

    def _charge_background(self, num_online: int, num_background: int, step_time_s: float) -> None:
        if not num_background:
            self._background_budget.observe_online(step_time_s)
        elif num_online:
            self._background_budget.observe_joint(step_time_s - self.budget.decode_s(num_online))

    def append_token(self, sequence: Sequence, token_id: int) -> None:
        """Append a sampled token; the next step computes it."""
        sequence.tokens.append(token_id)
        if sequence.first_token_s < 0.0:
            sequence.first_token_s = self._clock()

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a running sequence. Its full pages stay in the prefix tree until they are evicted."""
        self._retire(sequence, reason)

    def check_invariants(self) -> None:
        """Raise AssertionError on a leaked page or row or a wrong status. For tests: O(sequences + pages)."""
        waiting = self._queue.sequences()
        self._kv.check_invariants([*self._running.values(), *waiting])
        rows = [sequence.row for sequence in self._running.values()] + self._free_rows
        assert sorted(rows) == list(range(self._config.max_running)), f"rows are leaked: {rows}"
        assert all(sequence.status is SequenceStatus.RUNNING for sequence in self._running.values())
        for sequence in waiting:
            assert sequence.status is SequenceStatus.WAITING and sequence.row == -1 and not sequence.pages
        if self._adapters is not None:
            self._adapters.check_invariants(list(self._running.values()))

    def _check_fits(self, sequence: Sequence) -> None:
        num_prompt, max_tokens = sequence.num_prompt_tokens, sequence.request.params.max_tokens
        if num_prompt < 1:
            raise RequestError("the prompt has 0 tokens; give at least 1", param="prompt")
        total = num_prompt + max_tokens
        context, memory = self._config.max_model_tokens, self._kv.num_pages * PAGE_TOKENS
        # The last token is sampled but never computed.
        if total <= context and max(num_prompt, total - 1) <= memory:
            return
        what, limit = ("the model's context", context) if total > context else ("the KV memory", memory)
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens and max_tokens is {max_tokens}, {total} in all, but {what} "
            f"holds {limit}; shorten the prompt or lower max_tokens",
            param="max_tokens" if num_prompt < limit else None,
        )

    def _plan_decodes(self, preempted: list[Sequence]) -> tuple[list[ScheduledChunk], list[Sequence]]:
        """Plan one token for every decoding sequence; return the others as prefills.

        Both are in the order of `_by_priority`.
        """
        chunks: list[ScheduledChunk] = []
        prefills, running = list[Sequence](), SequenceStatus.RUNNING
        for sequence in self._by_priority():
            num_pending, start = sequence.num_pending, sequence.num_computed_tokens
            if sequence.status is not running:
                continue  # preempted earlier in this loop
            num_tokens = len(sequence.tokens) + num_pending
            num_output_tokens = num_tokens - sequence.num_prompt_tokens
            if num_pending and num_output_tokens >= sequence.request.params.max_tokens:
                continue  # complete when the step in flight has been read
            num_left = num_tokens - start
            if num_left > 1 or sequence.scheduled_s < 0.0:
                prefills.append(sequence)
            # Only a full last page needs the slow path: once in PAGE_TOKENS steps.
            elif num_left == 1 and (
                start < len(sequence.pages) * PAGE_TOKENS or self._make_room(sequence, preempted)
            ):
                chunks.append(ScheduledChunk(sequence, start, 1))
        return chunks, prefills

    def _by_priority(self) -> list[Sequence]:
        """Running sequences: online ones first, then of the tenant with the fewest pages, then oldest first.

        The last one is preempted first. Pages are those at the beginning of `schedule`.
        """
        running = list(self._running.values())
        if self._is_shared:
            return sorted(running, key=lambda s: (s.request.priority, self._tenant_of(s).num_pages))
        return sorted(running, key=_priority) if self._num_background else running

    def _tenant_of(self, sequence: Sequence) -> Tenant:
        return self._queue.tenants_of(sequence).of(sequence)

    def _begin_sharing(self) -> None:
        """Note whether tenants share the next step, and what each holds."""
        self._is_shared = len(self._queue.online) > 1 or len(self._queue.background) > 1
        self.budget.is_shared = self._is_shared
        if not self._is_shared:
            return
        for tenants in (self._queue.online, self._queue.background):
            tenants.forget_pages()
        for sequence in self._running.values():
            self._tenant_of(sequence).num_pages += len(sequence.pages)

    def _share_out(self, preempted: list[Sequence]) -> None:
        """Preempt sequences of tenants that have more than their share for the next one in the queue."""
        head = next(iter(self._queue.first(1)), None)
        if head is None or not self._has_slot(head):
            return
        while self._running:
            reserved = sum(pages_for(len(s.tokens)) - len(s.pages) for s in self._running.values())
            if self._free_rows and self._has_pages(head, self._kv.match(head), reserved):
                return
            newest_first = reversed(self._running.values())
            victim = self._queue.tenants_of(head).victim(head, newest_first, self._shares)
            if victim is None:
                return
            self._tenant_of(victim).num_pages -= len(victim.pages)
            self._preempt(victim, preempted)

    def _has_slot(self, sequence: Sequence) -> bool:
        """Whether the sequence needs no adapter, or one that has a slot and admits it."""
        adapter, adapters = sequence.request.adapter, self._adapters
        return not adapter or adapters is None or (adapters.has(adapter) and adapters.admits(sequence))

    def _pause_background(
        self, chunks: list[ScheduledChunk], prefills: list[Sequence]
    ) -> tuple[list[ScheduledChunk], list[Sequence]]:
        """Without background sequences if an online one has a prompt to compute or they had their share."""
        online = [chunk for chunk in chunks if not chunk.sequence.request.priority]
        online_prefills = [sequence for sequence in prefills if not sequence.request.priority]
        if online_prefills or (online and not self._background_budget.may_join):
            return online, online_prefills
        return chunks, prefills

    def _prompt_tokens(self, chunks: list[ScheduledChunk], prefills: list[Sequence]) -> int:
        """Prompt tokens of the next step; few if it has only background prompts: an online one may arrive."""
        tokens = self.budget.prefill_tokens(len(chunks), len(prefills) + len(self._queue))
        if prefills and all(map(_priority, prefills)):
            return min(tokens, self._background_budget.prompt_tokens)
        return tokens

    def _make_way(self, preempted: list[Sequence]) -> None:
        """Preempt background sequences, the newest first, until the next waiting online sequence fits."""
        waiting = self._queue.first_online()
        while waiting is not None and self._num_background:
            online = [s for s in self._running.values() if not s.request.priority]
            reserved = sum(pages_for(len(s.tokens)) - len(s.pages) for s in online)
            if self._free_rows and self._has_pages(waiting, self._kv.match(waiting), reserved):
                return
            self._preempt(self._by_priority()[-1], preempted)

    def _has_pages(self, sequence: Sequence, match: PrefixMatch, reserved: int) -> bool:
        """Whether it fits beside the pages that are `reserved` for running sequences."""
        if not self._running:
            return True
        num_new = pages_for(len(sequence.tokens)) - len(match.nodes)
        # Each running sequence may soon need one more page: keep those free, or some would be preempted.
        has_pages = num_new + match.num_evictable <= self._kv.free_pages - reserved - len(self._running)
        return has_pages and self._kv.has_window_room(sequence, match, self._running.values())

    def _make_room(self, sequence: Sequence, preempted: list[Sequence]) -> bool:
        """Allocate a page for the next token, preempting the newest, background sequences first.

        Returns False if the sequence itself was preempted. Decodes already planned come later in the order of
        preemption, and are never preempted.
        """
        start = sequence.num_computed_tokens
        while self._kv.grow(sequence, start + 1) <= start:
            victim = self._by_priority()[-1]
            self._preempt(victim, preempted)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, preempted: list[Sequence]) -> None:
        """Free row and pages. On resumption, most of its pages are usually still prefix hits."""
        preempted.append(victim)
        victim.num_charged_tokens = max(victim.num_charged_tokens, victim.num_read_tokens)
        self._leave(victim)
        victim.status = SequenceStatus.WAITING
        victim.num_preemptions += 1
        self._queue.push_front(victim)
        self.preemptions_total += 1

    def _retire(self, sequence: Sequence, reason: FinishReason) -> None:
        self._leave(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason

    def _leave(self, sequence: Sequence) -> None:
        self._kv.release(sequence)
        if self._running.pop(sequence.request.request_id, None) is not None:
            self._free_rows.append(sequence.row)
            sequence.row = -1
            self._num_background -= _priority(sequence)
            self._queue.tenants_of(sequence).end(sequence)
            if self._adapters is not None:
                self._adapters.give_back(sequence)

    def _admit(self, prefills: list[Sequence], tokens: int) -> None:
        """Move waiting sequences to running, in the queue's order, and append them to `prefills`.

        Stops at the first that does not fit beside what the running ones still need. Skips sequences whose
        next page a running one is about to compute (a prefix hit is cheaper than computing it twice), and
        those whose adapter has no device slot yet. Online ones wait for no background prompt.
        """
        kv, adapters = self._kv, self._adapters
        num_candidates = len(self._free_rows) + _MAX_SKIPPED
        if adapters is not None:
            adapters.begin_pass()
            num_candidates = len(self._queue)
        candidates = self._queue.first(num_candidates)
        is_background = all(map(_priority, candidates))
        ahead = [sequence for sequence in prefills if is_background or not sequence.request.priority]
        num_ahead = Counter(sequence.request.tenant_salt for sequence in ahead)
        max_ahead = max(1, _MAX_PREFILLING // max(1, len(self._queue.online), len(self._queue.background)))
        tokens -= sum(sequence.num_uncomputed_tokens for sequence in ahead)
        reserved = sum(pages_for(len(s.tokens)) - len(s.pages) for s in ahead)
        in_progress = {digest for s in ahead if (digest := kv.next_digest(s)) is not None}
        num_skipped = 0
        for sequence in candidates:
            if not self._free_rows or num_skipped == _MAX_SKIPPED:
                return
            tenant = sequence.request.tenant_salt
            if num_ahead[tenant] >= max_ahead and tokens <= 0:
                continue
            if adapters is not None and sequence.request.adapter and not adapters.admits(sequence):
                continue
            match = kv.match(sequence)
            if match.next_digest in in_progress:
                num_skipped += 1
                continue
            if not self._has_pages(sequence, match, reserved):
                return
            self._start(sequence, match)
            prefills.append(sequence)
            num_ahead[tenant] += 1
            reserved += pages_for(len(sequence.tokens)) - len(match.nodes)
            tokens -= sequence.num_uncomputed_tokens
            if (digest := kv.next_digest(sequence)) is not None:
                in_progress.add(digest)

    def _start(self, sequence: Sequence, match: PrefixMatch) -> None:
        self._queue.depart(sequence, self._clock())
        sequence.row = self._free_rows.pop()
        self._kv.attach(sequence, match)
        sequence.status = SequenceStatus.RUNNING
        if self._adapters is not None and sequence.request.adapter:
            self._adapters.take(sequence)
        self._running[sequence.request.request_id] = sequence
        self._num_background += _priority(sequence)

    def _prefill_order(self, prefills: list[Sequence]) -> list[Sequence]:
        """The least served tenant first, and of its prompts the shortest remaining first.

        Every other step moves its oldest to the front to prevent starvation.
        """
        order, oldest = sorted(prefills, key=lambda s: s.num_uncomputed_tokens), prefills[0]
        if self._is_shared:
            order.sort(key=lambda s: self._tenant_of(s).served)
            least = self._tenant_of(order[0])
            oldest = next(s for s in prefills if self._tenant_of(s) is least)
        self._oldest_first = not self._oldest_first
        if self._oldest_first:
            order.remove(oldest)
            order.insert(0, oldest)
        return order

    def _plan_prefills(self, prefills: list[Sequence], tokens: int) -> list[ScheduledChunk]:
        """Divide the step's prompt tokens: an equal share each first, then the remainder in order.

        Tenants have equal shares, and so have the prompts of one.
        """
        least = min(self._config.min_chunk_tokens, tokens)
        order = self._prefill_order(prefills)
        lefts = [self._kv.chunk_end(sequence) - sequence.num_computed_tokens for sequence in order]
        prompts_of = Counter(sequence.request.tenant_salt for sequence in order)
        share_of = {
            tenant: max(least, tokens // (len(prompts_of) * min(_NUM_PREFILL_SHARES, num_prompts)))
            for tenant, num_prompts in prompts_of.items()
        }
        grants = [0] * len(order)
        for limits in (share_of, dict.fromkeys(share_of, tokens)):
            for index, sequence in enumerate(order):
                limit = limits[sequence.request.tenant_salt]
                wanted = min(lefts[index], grants[index] + tokens, limit)
                if wanted < min(least, lefts[index]):
                    continue  # smaller than a chunk may be, and not the last before a checkpoint or the end
                room = self._kv.grow(sequence, sequence.num_computed_tokens + wanted)
                granted = room - sequence.num_computed_tokens
                tokens -= granted - grants[index]
                grants[index] = granted
        now_s = self._clock()
        chunks: list[ScheduledChunk] = []
        for sequence, granted in zip(order, grants, strict=True):
            if granted:
                chunks.append(ScheduledChunk(sequence, sequence.num_computed_tokens, granted))
                if sequence.scheduled_s < 0.0:
                    sequence.scheduled_s = now_s
        return chunks


def _priority(sequence: Sequence) -> int:
    return sequence.request.priority
