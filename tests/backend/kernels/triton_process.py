"""A process of its own for Triton, which reads its variables when it is imported."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import FunctionType

import pytest


def patch_once() -> None:
    """Let Triton's interpreter put its functions in the language's place once, and leave them there.

    It does so for every launch and every call of an inner function, which takes two fifths of the time of
    a whole model.
    """
    from triton.runtime import interpreter

    patch, language = interpreter._patch_lang, interpreter.tl
    done: set[frozenset[int]] = set()

    def patch_first(function: FunctionType) -> object:
        seen = function.__globals__.values()
        names = frozenset(id(each) for each in (language, language.core) if any(each is one for one in seen))
        if names not in done:
            patch(function)
            done.add(names)
        return interpreter._LangPatchScope()  # which restores nothing

    interpreter._patch_lang = patch_first


@contextmanager
def triton_process(**variables: str) -> Iterator[ProcessPoolExecutor]:
    """Runs what it is sent, one call after another, so that torch and Triton are imported once.

    What a call changes for all others it must change back.
    """
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with pool, pytest.MonkeyPatch.context() as patch:
        # Sums of products are fused as on a GPU; later versions warn that this is no longer the default.
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        for name, value in variables.items():
            patch.setenv(name, value)
        pool.submit(patch_once).result()  # it has started, with these variables
        patch.undo()
        yield pool
