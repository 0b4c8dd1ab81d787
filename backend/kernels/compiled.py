"""Loops for CPUs, compiled by Numba when they are first called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.extending import intrinsic as numba_intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _sources_digest() -> str:
    """Of everything that a compiled function may have taken in: Numba itself looks at its own file alone."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_DIGEST = _sources_digest()


def compiled(function: _Function) -> _Function:
    """The function as machine code: sums in any order, without the interpreter's lock.

    What was compiled is kept beside the source or in the user's cache, for the next process; where neither
    can be written, each process compiles anew.
    """
    function.__qualname__ += f"_{_DIGEST}"  # a part of the name that it is kept under
    try:
        return cast("_Function", njit(cache=True, fastmath=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:
        return cast("_Function", njit(fastmath=True, nogil=True, error_model="numpy")(function))


def inner(function: _Function) -> _Function:
    """For what only compiled functions call: it is kept as a part of them."""
    return cast("_Function", njit(fastmath=True, nogil=True, error_model="numpy")(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what compiled functions call and LLVM's instructions say better; see Numba's documentation."""
    return cast("Callable[..., Any]", numba_intrinsic(function))
