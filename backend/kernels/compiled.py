"""Loops for CPUs, compiled by Numba when they are first called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit
from numba.extending import intrinsic as numba_intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """The function as machine code: sums in any order, without the interpreter's lock.

    What was compiled is kept beside the source or in the user's cache, for the next process; where neither
    can be written, each process compiles anew.
    """
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
