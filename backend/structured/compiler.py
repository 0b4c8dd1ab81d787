"""Compiles grammars off the engine's loop: first in a sandbox, then in a thread of the engine."""

from __future__ import annotations

import hashlib
import queue
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock

from backend.errors import CheckpointError, QueueFull, RequestError, TryAgain
from backend.structured.compiled_grammar import CompiledGrammar, build
from backend.structured.fair_queue import FairQueue
from backend.structured.grammar import Grammar
from backend.structured.grammar_cache import GrammarCache, OverLimit
from backend.structured.llguidance_source import llguidance_source
from backend.structured.sandbox import Sandbox, SandboxEnded, SandboxLimits, SandboxLost
from backend.structured.vocabulary import Vocabulary
from backend.types import GrammarSpec

_NUM_SANDBOXES = 3
_MAX_RUNNING_PER_TENANT = 2
"""Fewer than there are sandboxes: one tenant's slow grammars cannot block all others."""

_MAX_PENDING = 256
"""Pending compilations beyond which a tenant is refused, unless it has fewer than its equal share."""

_RETRY_S = 2.0

_NEGATIVE_CACHE_S = 30.0
"""How long a grammar that exceeded a limit is refused without another try; CPUs do not always run as fast."""

_MAX_REBUILD_S = 0.02
"""A matcher built faster than this may be rebuilt in the engine's loop once it reaches its state limit."""


class GrammarCompiler:
    """Compiles each grammar once and caches it. Call it from one thread; worker threads do the work."""

    def __init__(
        self,
        checkpoint: Path,
        size: int,
        eos_token_ids: Iterable[int],
        limits: SandboxLimits | None = None,
        max_cached_bytes: int = 512 << 20,
    ) -> None:
        """`size` is the model's vocabulary size. Raises CheckpointError if there is no tokenizer.

        While the grammars in use fill `max_cached_bytes`, no further one is compiled.
        """
        ends = sorted(eos_token_ids)
        self._vocabulary = Vocabulary.from_checkpoint(checkpoint, size, ends)
        self._pool = ThreadPoolExecutor(_NUM_SANDBOXES, thread_name_prefix="grammar")
        limits = limits or SandboxLimits()
        self._sandboxes = [Sandbox(checkpoint, size, ends, limits) for _ in range(_NUM_SANDBOXES)]
        self._idle: queue.LifoQueue[Sandbox] = queue.LifoQueue()  # LIFO: reuse one that has started
        for sandbox in self._sandboxes:
            self._idle.put(sandbox)
        self._lock = Lock()
        self._cache = GrammarCache(max_cached_bytes)
        self._waiting: dict[bytes, GrammarSpec] = {}
        self._jobs: FairQueue[bytes] = FairQueue(_MAX_RUNNING_PER_TENANT)
        self._is_held = False  # jobs wait until sequences have ended and released their grammars
        self._times_s: deque[float] = deque()

    def submit(self, spec: GrammarSpec, tenant: str = "") -> Future[CompiledGrammar]:
        """Return a future of the grammar, or of its error. Raises QueueFull if too many are pending."""
        key = _key(spec)
        with self._lock:
            future = self._cache.get(key)
            if future is None:
                self._check_room(tenant)
                future = Future()
                self._cache.put(key, future)
                self._waiting[key] = spec
            if key in self._waiting:  # perhaps queued by another tenant too: the first turn counts
                self._jobs.put(tenant, key)
                self._pool.submit(self._run_jobs)
            return future

    def _check_room(self, tenant: str) -> None:
        if self._cache.num_pending < _MAX_PENDING:
            return
        if self._jobs.num_jobs(tenant) >= _MAX_PENDING // self._jobs.num_tenants_with(tenant):
            raise QueueFull(
                f"{_MAX_PENDING} grammars wait to be compiled; try again in {_RETRY_S:.0f} s", _RETRY_S
            )

    def drop_failed(self) -> None:
        """Drop grammars that met a limit. Call it when a sequence ends because of one."""
        with self._lock:
            self._cache.evict()

    def resume(self) -> None:
        """Go on with jobs that waited for memory, if there is some. Call it while grammars are pending."""
        if not self._is_held:
            return
        with self._lock:
            self._cache.evict()
            self._is_held = not self._cache.has_room
            if not self._is_held:
                for _ in range(_NUM_SANDBOXES):
                    self._pool.submit(self._run_jobs)

    def take_times(self) -> list[float]:
        """Return the seconds of each compilation since the last call, including refused ones."""
        times_s = self._times_s
        return [times_s.popleft() for _ in range(len(times_s))] if times_s else []

    def close(self) -> None:
        """Kill the sandboxes, busy ones included, and cancel what waits."""
        with self._lock:
            for key in self._waiting:
                self._cache[key].cancel()
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for sandbox in self._sandboxes:
            sandbox.interrupt()
        self._pool.shutdown()
        for sandbox in self._sandboxes:
            sandbox.close()

    def _run_jobs(self) -> None:
        """Compile jobs until none may run."""
        while job := self._next_job():
            tenant, spec, future = job
            self._run_job(spec, future)
            del job, spec, future  # an idle thread must not keep a grammar alive
            with self._lock:
                self._jobs.release(tenant)
                self._cache.evict()

    def _run_job(self, spec: GrammarSpec, future: Future[CompiledGrammar]) -> None:
        try:
            compiled = self._compile(spec)
            with self._lock:
                self._cache.count(compiled)
            future.set_result(compiled)
        except BaseException as error:  # noqa: BLE001 - delivered to the waiter
            future.set_exception(error)

    def _next_job(self) -> tuple[str, GrammarSpec, Future[CompiledGrammar]] | None:
        with self._lock:
            self._is_held = not self._cache.has_room
            while not self._is_held and (taken := self._jobs.take()):
                tenant, key = taken
                spec = self._waiting.pop(key, None)
                if spec is not None:
                    self._cache[key].set_running_or_notify_cancel()
                    return tenant, spec, self._cache[key]
                self._jobs.release(tenant)  # compiled from another tenant's queue
            return None

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        started_s = time.monotonic()
        try:
            return self._build(spec)
        finally:
            self._times_s.append(time.monotonic() - started_s)

    def _build(self, spec: GrammarSpec) -> CompiledGrammar:
        source = llguidance_source(spec, self._vocabulary)
        sandbox = self._idle.get()
        try:
            return self._build_checked(*sandbox.check(source), accepts_drafts=not spec.max_thought_tokens)
        except SandboxEnded as error:
            raise OverLimit(_refusal(error), spec.param, _NEGATIVE_CACHE_S) from None
        except SandboxLost as error:
            raise TryAgain(f"the grammar could not be tried out: {error}; try again", _RETRY_S) from None
        except ValueError as error:
            raise RequestError(_refusal(error), spec.param) from None
        finally:
            self._idle.put(sandbox)

    def _build_checked(self, source: str, num_bytes: int, *, accepts_drafts: bool) -> CompiledGrammar:
        """Build from source that compiled in the sandbox."""
        rebuild = partial(build, source, self._vocabulary)
        started_s = time.thread_time()
        matcher = rebuild()
        is_fast = time.thread_time() - started_s < _MAX_REBUILD_S
        return CompiledGrammar(
            matcher, rebuild if is_fast else None, num_bytes, accepts_drafts=accepts_drafts
        )


def _refusal(cause: Exception) -> str:
    return f"the grammar is refused: {cause}; simplify or correct it"


def open_compiler(
    checkpoint: str, size: int, eos_token_ids: Iterable[int], max_cached_bytes: int
) -> GrammarCompiler | None:
    """Return a compiler, or None for a checkpoint without a tokenizer: grammars need the tokens' text."""
    try:
        return GrammarCompiler(Path(checkpoint), size, eos_token_ids, max_cached_bytes=max_cached_bytes)
    except CheckpointError:
        return None


def new_grammar(compiled: Future[CompiledGrammar]) -> Grammar:
    """Return the grammar state of a new sequence from a finished compilation. Raises its error."""
    return Grammar(compiled.result(timeout=0))


def _key(spec: GrammarSpec) -> bytes:
    marks = f"{spec.kind}\0{spec.is_exact}\0{spec.thought}\0{spec.max_thought_tokens}\0{spec.param}\0"
    return hashlib.sha256(marks.encode() + spec.text.encode("utf-8", "surrogatepass")).digest()
