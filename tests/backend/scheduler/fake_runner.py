"""A runner without a model: checks every plan, tracks the content of each KV slot and "samples" from it.

A slot holds a hash of everything that its token may attend to. A wrong page, a stale or foreign prefix, a
gap or a write into a shared page changes a hash, and the sampled text with it.
"""

from __future__ import annotations

import functools

from backend.kv.checkpoints import CheckpointPool
from backend.kv.manager import KVManager
from backend.kv.states import MAX_LOGGED
from backend.kv.windows import WindowPages
from backend.scheduler import Scheduler, SchedulerConfig
from backend.types import PAGE_TOKENS, Plan, Request, SamplingParams, Sequence, SequenceStatus

VOCAB = 29
EOS = 0


@functools.lru_cache(maxsize=200_000)
def _extend(state: int, token: int) -> int:
    return hash((state, token))


def identities(request: Request, tokens: list[int]) -> list[int]:
    """The expected content of each slot: a hash of tenant, adapter and all tokens up to this one."""
    state = int.from_bytes(f"{request.tenant_salt}/{request.adapter}".encode(), "little")
    return [state := _extend(state, token) for token in tokens]


def next_token(state: int, request: Request) -> int:
    """The fake model: deterministic in the context; with min_tokens it never ends by itself."""
    return state % VOCAB if request.params.min_tokens == 0 else 1 + state % (VOCAB - 1)


def expected_output(request: Request) -> list[int]:
    """The output of the request when it runs alone."""
    tokens = list(request.prompt_token_ids)
    while len(tokens) - len(request.prompt_token_ids) < request.params.max_tokens:
        token = next_token(identities(request, tokens)[-1], request)
        if token == EOS:
            break
        tokens.append(token)
    return tokens[len(request.prompt_token_ids) :]


class FakeRunner:
    """Drives a scheduler as the engine does, one step at a time, on a simulated clock."""

    def __init__(
        self,
        config: SchedulerConfig,
        num_pages: int,
        prefix_cache: bool = True,
        num_checkpoints: int = 0,
        windows: tuple[int, int] | None = None,
    ) -> None:
        """With checkpoints the model has recurrent states, too; with windows, (pages, tokens) of them."""
        pool = CheckpointPool(num_checkpoints, config.max_running) if num_checkpoints else None
        self.kv = KVManager(
            num_pages,
            revision="r",
            kv_dtype="float32",
            prefix_cache=prefix_cache,
            checkpoints=pool,
            windows=WindowPages(*windows) if windows else None,
        )
        self.window, num_window_pages = (windows[1], windows[0]) if windows else (0, 0)
        self.window_slots: list[int | None] = [None] * (num_window_pages * PAGE_TOKENS)
        # By slot, position → state there, for those that it can go on from; None: the model has none.
        self.states: list[dict[int, int]] | None = None
        if num_checkpoints:
            self.states = [{} for _ in range(config.max_running + num_checkpoints)]
        self.now_s = 0.0
        self.config = config
        self.scheduler = Scheduler(config, self.kv, clock=lambda: self.now_s)
        self.slots: list[int | None] = [None] * (num_pages * PAGE_TOKENS)
        self.sequences: dict[str, Sequence] = {}
        self.decode_s = 0.010
        self.prompt_token_s = 0.0001

    def add(
        self, request_id: str, prompt: list[int], params: SamplingParams, salt: str = "", priority: int = 0
    ) -> Sequence:
        request = Request(
            request_id=request_id, prompt_token_ids=prompt, params=params, tenant_salt=salt, priority=priority
        )
        sequence = Sequence(request, list(prompt), len(prompt))
        self.scheduler.add(sequence)
        self.sequences[request_id] = sequence
        return sequence

    def step(self) -> Plan:
        running = self.running()
        decoding = [i for i in running if self.is_decoding(self.sequences[i])]  # not a prompt of one token
        plan = self.scheduler.schedule()
        self.copy_states()
        self.check(plan, running, decoding)
        for chunk in plan.chunks:
            self.compute(chunk.sequence, chunk.start, chunk.end)
        num_prompt = sum(chunk.num_tokens for chunk in plan.chunks if chunk.num_tokens > 1)
        step_s = self.decode_s + num_prompt * self.prompt_token_s
        self.now_s += step_s
        sampling = [chunk.sequence for chunk in plan.chunks if chunk.samples]
        self.scheduler.commit(plan, step_s)
        self.copy_states()
        for sequence in sampling:
            self.sample(sequence)
        self.scheduler.check_invariants()
        return plan

    def run(self, max_steps: int = 100_000) -> int:
        """Step until no work is left; return the number of steps."""
        for count in range(max_steps):
            if not self.scheduler.has_work:
                return count
            self.step()
        raise AssertionError(f"work is left after {max_steps} steps")

    def running(self) -> set[str]:
        return {i for i, s in self.sequences.items() if s.status is SequenceStatus.RUNNING}

    def check(self, plan: Plan, running_before: set[str], decoding_before: list[str]) -> None:
        sizes = [chunk.num_tokens for chunk in plan.chunks]
        assert sum(sizes) <= self.config.max_batch_tokens and all(size > 0 for size in sizes)
        assert len({chunk.sequence.row for chunk in plan.chunks}) == len(plan.chunks)
        planned = {chunk.sequence.request.request_id: chunk for chunk in plan.chunks}
        assert len(planned) == len(plan.chunks)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert sequence.status is SequenceStatus.RUNNING and sequence not in plan.preempted
            assert chunk.start == sequence.num_computed_tokens and chunk.end <= len(sequence.tokens)
            assert chunk.end <= len(sequence.pages) * PAGE_TOKENS
        decoding = [i for i in decoding_before if self.sequences[i].status is SequenceStatus.RUNNING]
        online = {i for i, s in self.sequences.items() if not s.request.priority}
        if planned.keys() & online:
            if any(i not in decoding for i in planned.keys() & online):
                assert planned.keys() <= online, "a background sequence is in a step with an online prompt"
            decoding = [i for i in decoding if i in online or i in planned]
        assert [chunk.sequence for chunk in plan.chunks[: len(decoding)]] == [
            chunk.sequence for chunk in plan.chunks if chunk.sequence.request.request_id in decoding
        ], "decodes come first"
        assert set(decoding) <= set(planned), "a decode never waits"
        if plan.preempted:
            assert self.running() <= running_before, "a step that preempts admits no sequence"
        elif not plan.chunks:
            assert not self.scheduler.has_work, "nothing is planned although work is left"

    def is_decoding(self, sequence: Sequence) -> bool:
        return sequence.num_uncomputed_tokens == 1 and sequence.scheduled_s >= 0.0

    def compute(self, sequence: Sequence, start: int, end: int) -> None:
        wanted = identities(sequence.request, sequence.tokens)
        for position in range(end):
            slot = sequence.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS
            if position >= start:
                self.slots[slot] = wanted[position]
            assert self.slots[slot] == wanted[position], f"position {position} holds the wrong content"
        if self.window:
            self.compute_windowed(sequence, start, end, wanted)
        if self.states is not None:
            known = self.states[sequence.row]
            assert start == 0 or known[start] == wanted[start - 1], f"the state at {start} is another's"
            first = start if end - start <= MAX_LOGGED else end
            self.states[sequence.row] = {p: wanted[p - 1] for p in range(max(1, first), end + 1)}

    def compute_windowed(self, sequence: Sequence, start: int, end: int, wanted: list[int]) -> None:
        for position in range(max(0, start + 1 - self.window), end):
            slot = sequence.window_pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS
            if position >= start:
                self.window_slots[slot] = wanted[position]
            assert self.window_slots[slot] == wanted[position], f"position {position} is not in the window"

    def copy_states(self) -> None:
        for copy in self.kv.take_state_copies():
            assert self.states is not None and copy.position in self.states[copy.source]
            self.states[copy.target] = dict(self.states[copy.source])

    def sample(self, sequence: Sequence) -> None:
        request = sequence.request
        token = next_token(identities(request, sequence.tokens)[-1], request)
        if token == EOS:
            self.scheduler.finish(sequence, "stop")
            return
        self.scheduler.append_token(sequence, token)
        if sequence.num_output_tokens == request.params.max_tokens:
            self.scheduler.finish(sequence, "length")
