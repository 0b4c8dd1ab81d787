"""Loops for CPUs, compiled by Numba when they are first called and cached on disk for the next process."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from filelock import FileLock
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic as numba_intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

_OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz"},  # sums in any order, but NaN and infinity stay what they are
    "nogil": True,
    "error_model": "numpy",
}


def _sources_digest() -> str:
    """The digest of what compiled functions may have inlined: Numba itself checks its own file alone."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_DIGEST = _sources_digest()


class CachedFunction:
    """A compiled function whose cache on disk is read and written under a file lock.

    Numba numbers the files of a function's signatures: two processes that compile different signatures at
    once would take the same number, and one would run the other's code. So every call for which nothing is
    compiled in this process yet, and only such a call, waits for the lock.
    """

    __slots__ = ("_is_ready", "dispatcher")

    def __init__(self, dispatcher: Any) -> None:  # noqa: ANN401 - Numba has no types
        self.dispatcher = dispatcher
        self._is_ready = False  # a signature is compiled, so that Numba agrees to compile no others by itself

    def __call__(self, *arguments: object) -> object:
        """Call it; compile it for arguments of new types, or load what another process compiled."""
        if self._is_ready:
            try:
                return self.dispatcher(*arguments)
            except TypeError:
                pass  # nothing is compiled for these types: nothing ran
        try:
            return self._load_or_compile(arguments)
        except (OSError, NotImplementedError) as error:  # a full disk, or one without file locks
            _log_no_cache(str(error))
            self.dispatcher = njit(**_OPTIONS)(self.dispatcher.py_func)
            self._is_ready = True
            return self.dispatcher(*arguments)

    def _load_or_compile(self, arguments: tuple[object, ...]) -> object:
        if self.dispatcher.stats.cache_path is None:
            return self.dispatcher(*arguments)
        folder = Path(self.dispatcher.stats.cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "kernels.lock"):
            if self._is_ready:
                self.dispatcher.disable_compile(False)
            result = self.dispatcher(*arguments)
            self.dispatcher.disable_compile()
            self._is_ready = True
        return result


@functools.cache
def _log_no_cache(error: str) -> None:
    """Once for each error: it comes with every function."""
    logger.warning("compiled CPU loops are not cached on disk, so they are compiled again: %s", error)


def compiled(function: _Function) -> _Function:
    """The function as machine code: sums in any order, without the interpreter's lock.

    The cache is beside the source or in the user's cache folder; where neither can be written, each process
    compiles again.
    """
    function.__qualname__ += f"_{_DIGEST}"  # a part of the name of its cache
    try:
        return cast("_Function", CachedFunction(njit(cache=True, **_OPTIONS)(function)))
    except RuntimeError:
        return cast("_Function", njit(**_OPTIONS)(function))


def inner(function: _Function) -> _Function:
    """For what only compiled functions call: it is cached as a part of them."""
    return cast("_Function", njit(**_OPTIONS)(function))


def ordered(function: _Function) -> _Function:
    """Like `inner`, for functions whose sums must keep their order and whose NaN must not be lost."""
    return cast("_Function", njit(**_OPTIONS | {"fastmath": False})(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what compiled functions call and LLVM's instructions say better; see Numba's documentation."""
    return cast("Callable[..., Any]", numba_intrinsic(function))


def pointer_to(kind: types.Type) -> Callable[..., Any]:
    """The function that compiled functions turn an address into a pointer with, for Numba's carray."""
    pointer = types.CPointer(kind)  # type: ignore[no-untyped-call]

    def point(typing: object, address: types.Type) -> tuple[object, Callable[..., Any]]:
        def generate(
            context: Any,  # noqa: ANN401
            builder: ir.IRBuilder,
            signature: object,
            arguments: list[ir.Value],
        ) -> ir.Value:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(address), generate

    return intrinsic(point)


@intrinsic
def as_float(typing: object, bits: object) -> tuple[object, Callable[..., Any]]:
    """The float32 of these 32 bits, as words of a job have them."""

    def generate(
        context: object, builder: ir.IRBuilder, signature: object, arguments: list[ir.Value]
    ) -> ir.Value:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


def float_bits(value: float) -> int:
    """The number as the bits of a float32, for a job."""
    return ctypes.c_int32.from_buffer(ctypes.c_float(value)).value


_ONE_THREAD_ELEMENTS = 1 << 15
"""Up to this many elements, waking a thread costs more than it saves."""


def num_threads(num_elements: int) -> int:
    """The threads that are worth waking to read and write this many elements."""
    return 1 if num_elements <= _ONE_THREAD_ELEMENTS else torch.get_num_threads()


class ThreadedFunction:
    """A compiled function of a job, which threads run at once: each takes parts until none is left.

    The threads are those of torch's OpenMP, so that there is one pool. Where torch has another, the caller
    runs the job alone.
    """

    __slots__ = ("_compiled", "_function", "_run")

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function
        self._compiled: Any = None
        self._run: Callable[..., Any] | None = None

    def __call__(self, job: Sequence[int], num_threads: int) -> None:
        """Run it, compiled or loaded at first; `job` begins with 0, which next_part counts up."""
        run = self._run or self._load_or_compile()
        words = (ctypes.c_int64 * len(job))(*job)
        start = _team_starter() if num_threads > 1 else None
        if start is None:
            run(words)
        else:
            start(self._compiled.address, words, num_threads, 0)

    def _load_or_compile(self) -> Callable[..., Any]:
        """Under the lock of CachedFunction; a C function has one signature, which is compiled at once."""
        signature = types.void(types.CPointer(types.int64))  # type: ignore[no-untyped-call]
        try:
            folder = Path(FunctionCache(self._function).cache_path)  # type: ignore[no-untyped-call]
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "kernels.lock"):
                self._compiled = cfunc(signature, cache=True, **_OPTIONS)(self._function)
        except (OSError, NotImplementedError, RuntimeError) as error:
            _log_no_cache(str(error))
            self._compiled = cfunc(signature, **_OPTIONS)(self._function)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._compiled.address)
        return self._run


@functools.cache
def _team_starter() -> Callable[..., Any] | None:
    """OpenMP's entry for parallel regions: (function, its argument, threads, flags)."""
    try:
        start = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError):
        return None
    start.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    start.restype = None
    return cast("Callable[..., Any]", start)


def threaded(function: Callable[[Any], None]) -> ThreadedFunction:
    """The function of a pointer to the words of a job as machine code for several threads."""
    function.__qualname__ += f"_{_DIGEST}"
    return ThreadedFunction(function)


@intrinsic
def next_part(typing: object, job: types.Type) -> tuple[object, Callable[..., Any]]:
    """The number of the next part of a job that no thread has taken."""

    def generate(
        context: object, builder: ir.IRBuilder, signature: object, arguments: list[ir.Value]
    ) -> ir.Value:
        return builder.atomic_rmw("add", arguments[0], ir.IntType(64)(1), "monotonic")

    return types.int64(job), generate
