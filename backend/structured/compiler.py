"""Compiles grammars beside the engine's loop: tried out in a sandbox first, then built here in a thread."""

from __future__ import annotations

import hashlib
import queue
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock

from backend.errors import CheckpointError, QueueFull, RequestError
from backend.structured.automata import Automaton, build
from backend.structured.automaton_text import automaton_text
from backend.structured.grammar import Grammar
from backend.structured.sandbox import Sandbox, SandboxEnded, SandboxLimits
from backend.structured.turns import Turns
from backend.structured.vocabulary import Vocabulary
from backend.types import GrammarSpec

_NUM_SANDBOXES = 3
_NUM_OF_A_TENANT = 2
"""So many grammars compile at a time: a hostile one does not hold up the next, nor its tenant all others."""

_MAX_PENDING = 256
"""When so many wait, a tenant may still have its share of them."""

_MAX_CACHED = 256
_RETRY_S = 2.0

_REMEMBERED_S = 30.0
"""So long a grammar that met a limit is not tried again. The machine may have been busy."""

_LONGEST_PAUSE_S = 0.02
"""An automaton that is built so fast is built anew by the engine's loop, when it has met a limit."""


class GrammarCompiler:
    """`submit` from one thread; the work is done in others. Equal grammars are compiled once."""

    def __init__(
        self,
        checkpoint: Path,
        size: int,
        eos_token_ids: Iterable[int],
        limits: SandboxLimits | None = None,
    ) -> None:
        """`size` and ends are the model's. Raises CheckpointError when there is no tokenizer."""
        ends = sorted(eos_token_ids)
        self._vocabulary = Vocabulary.from_checkpoint(checkpoint, size, ends)
        self._pool = ThreadPoolExecutor(_NUM_SANDBOXES, thread_name_prefix="grammar")
        limits = limits or SandboxLimits()
        self._all = [Sandbox(checkpoint, size, ends, limits) for _ in range(_NUM_SANDBOXES)]
        self._sandboxes: queue.LifoQueue[Sandbox] = queue.LifoQueue()  # free ones, a started one first
        for sandbox in self._all:
            self._sandboxes.put(sandbox)
        self._lock = Lock()
        self._found: OrderedDict[bytes, Future[Automaton]] = OrderedDict()  # the longest unused first
        self._waiting: dict[bytes, GrammarSpec] = {}
        self._turns: Turns[bytes] = Turns(_NUM_OF_A_TENANT)
        self._times_s: deque[float] = deque()

    def submit(self, spec: GrammarSpec, tenant: str = "") -> Future[Automaton]:
        """The automaton's start, sooner or later, or RequestError. Raises QueueFull when too many wait."""
        key = _key(spec)
        with self._lock:
            future = self._found.get(key)
            if future is None or _is_of_no_use(future):
                self._check_room(tenant)
                future = self._found[key] = Future()
                self._waiting[key] = spec
                self._drop_oldest()
            self._found.move_to_end(key)
            if key in self._waiting:  # in another tenant's line, maybe: the first turn counts
                self._turns.put(tenant, key)
                self._pool.submit(self._work)
            return future

    def _check_room(self, tenant: str) -> None:
        if sum(not future.done() for future in self._found.values()) < _MAX_PENDING:
            return
        if self._turns.num_jobs(tenant) >= _MAX_PENDING // self._turns.num_tenants_with(tenant):
            raise QueueFull(
                f"{_MAX_PENDING} grammars wait to be compiled; try again in {_RETRY_S:.0f} s", _RETRY_S
            )

    def take_times(self) -> list[float]:
        """Seconds that each grammar took since the last call, those that were refused as well."""
        times_s = self._times_s
        return [times_s.popleft() for _ in range(len(times_s))] if times_s else []

    def close(self) -> None:
        """End the sandboxes, also those at work; what still waits is forgotten."""
        with self._lock:
            for key in self._waiting:
                self._found[key].cancel()
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for sandbox in self._all:
            sandbox.interrupt()
        self._pool.shutdown()
        for sandbox in self._all:
            sandbox.close()

    def _drop_oldest(self) -> None:
        if (surplus := len(self._found) - _MAX_CACHED) > 0:
            for key in [key for key, future in self._found.items() if future.done()][:surplus]:
                del self._found[key]

    def _work(self) -> None:
        """Compile whatever may be compiled now."""
        while taken := self._take():
            tenant, spec, future = taken
            try:
                future.set_result(self._compile(spec))
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                future.set_exception(error)
            with self._lock:
                self._turns.release(tenant)

    def _take(self) -> tuple[str, GrammarSpec, Future[Automaton]] | None:
        with self._lock:
            while taken := self._turns.take():
                tenant, key = taken
                spec = self._waiting.pop(key, None)
                if spec is not None:
                    self._found[key].set_running_or_notify_cancel()
                    return tenant, spec, self._found[key]
                self._turns.release(tenant)  # it has had its turn in another line
            return None

    def _compile(self, spec: GrammarSpec) -> Automaton:
        started_s = time.monotonic()
        try:
            return self._build(spec)
        finally:
            self._times_s.append(time.monotonic() - started_s)

    def _build(self, spec: GrammarSpec) -> Automaton:
        text = automaton_text(spec, self._vocabulary)
        sandbox = self._sandboxes.get()
        try:
            return self._automaton(sandbox.check(text))
        except SandboxEnded as error:
            raise _OverLimit(_refusal(error), spec.param, _REMEMBERED_S) from None
        except OSError as error:  # the machine's fault; it must not cost the engine its life
            raise _OverLimit(
                f"no process to try the grammar out in could be started ({error.strerror}); try again later",
                spec.param,
            ) from None
        except ValueError as error:
            raise RequestError(_refusal(error), spec.param) from None
        finally:
            self._sandboxes.put(sandbox)

    def _automaton(self, text: str) -> Automaton:
        """What the sandbox has found to be good."""
        build_anew = partial(build, text, self._vocabulary)
        started_s = time.monotonic()
        matcher = build_anew()
        is_quick = time.monotonic() - started_s < _LONGEST_PAUSE_S
        return Automaton(matcher, build_anew if is_quick else None)


class _OverLimit(RequestError):
    """Too slow or too large, which counts for a while and is then tried again when asked again."""

    def __init__(self, message: str, param: str, valid_s: float = 0.0) -> None:
        super().__init__(message, param)
        self.until_s = time.monotonic() + valid_s


def _is_of_no_use(found: Future[Automaton]) -> bool:
    """True when it is worth another try: it met a limit some time ago, or has taken others to one."""
    if not found.done() or found.cancelled():
        return False
    error = found.exception()
    if isinstance(error, _OverLimit):
        return error.until_s <= time.monotonic()
    return error is None and found.result().is_spent


def _refusal(against: Exception) -> str:
    return f"the grammar is refused: {against}; simplify or mend it"


def open_compiler(
    checkpoint: str, size: int, eos_token_ids: Iterable[int], limits: SandboxLimits | None = None
) -> GrammarCompiler | None:
    """None for a checkpoint without a tokenizer: token ids alone spell nothing."""
    try:
        return GrammarCompiler(Path(checkpoint), size, eos_token_ids, limits)
    except CheckpointError:
        return None


def start(found: Future[Automaton]) -> Grammar:
    """A sequence's own grammar from a finished compilation. Raises RequestError."""
    return Grammar(found.result(timeout=0))


def _key(spec: GrammarSpec) -> bytes:
    marks = f"{spec.kind}\0{spec.is_exact}\0{spec.thought}\0{spec.param}\0"
    return hashlib.sha256(marks.encode() + spec.text.encode("utf-8", "surrogatepass")).digest()
