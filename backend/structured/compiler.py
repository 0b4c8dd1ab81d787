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
from backend.structured.vocabulary import Vocabulary
from backend.types import GrammarSpec

_NUM_SANDBOXES = 2
"""So many grammars compile at a time: a hostile one does not hold up the next."""

_MAX_PENDING = 256
_MAX_CACHED = 256
_RETRY_S = 2.0

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
        self._times_s: deque[float] = deque()

    def submit(self, spec: GrammarSpec) -> Future[Automaton]:
        """The automaton's start, sooner or later, or RequestError. Raises QueueFull when too many wait."""
        key = _key(spec)
        with self._lock:
            future = self._found.get(key)
            if future is not None and not _is_of_no_use(future):
                self._found.move_to_end(key)
                return future
            if sum(not future.done() for future in self._found.values()) >= _MAX_PENDING:
                raise QueueFull(
                    f"{_MAX_PENDING} grammars wait to be compiled; try again in {_RETRY_S:.0f} s", _RETRY_S
                )
            future = self._found[key] = self._pool.submit(self._compile, spec)
            self._found.move_to_end(key)
            self._drop_oldest()
            return future

    def take_times(self) -> list[float]:
        """Seconds that each grammar took since the last call, those that were refused as well."""
        times_s = self._times_s
        return [times_s.popleft() for _ in range(len(times_s))] if times_s else []

    def close(self) -> None:
        """End the sandboxes, also those at work; what still waits is forgotten."""
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
            raise _OverLimit(_refusal(error), spec.param) from None
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
    """Too slow or too large; the machine may have been busy, so this is tried again when asked again."""


def _is_of_no_use(found: Future[Automaton]) -> bool:
    """True when it is worth another try: it met a limit, or has taken others to one."""
    if not found.done() or found.cancelled():
        return False
    error = found.exception()
    return isinstance(error, _OverLimit) or (error is None and found.result().is_spent)


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
