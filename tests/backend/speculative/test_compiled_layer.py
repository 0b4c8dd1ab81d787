"""When a drafter's parts are compiled, and that they are before requests come."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from numba import typeof

from backend.kernels import round_layer
from backend.speculative.compiled_layer import (
    MAX_ELEMENTS,
    CompiledAttention,
    CompiledFeedForward,
    CompiledHead,
    CompiledProjection,
    Norm,
    compiles,
    feed_forward_weights,
    most_rows,
    projection_weights,
)
from backend.speculative.round_layer import Angles, Few, Heads

CPU = torch.device("cpu")
NORM = Norm(torch.ones(16), 1e-6)


def test_compiles_small_matrices_of_a_cpu_in_float32() -> None:
    assert compiles(CPU, torch.float32, 16, MAX_ELEMENTS)
    assert not compiles(CPU, torch.float32, 16, MAX_ELEMENTS + 1)
    assert not compiles(CPU, torch.bfloat16, 16)
    assert not compiles(torch.device("cuda"), torch.float32, 16)


def test_many_rows_are_left_to_torch() -> None:
    function = Few(lambda x: x + 1, lambda x: x + 2, 3)
    assert function(torch.zeros(3, 1)).eq(2).all() and function(torch.zeros(4, 1)).eq(1).all()
    assert Few(lambda x: x + 1, None, 3)(torch.zeros(1, 1)).eq(1).all()


@pytest.mark.parametrize(("num_threads", "rows", "columns"), [(1, 16, 2048), (4, 4, 512), (64, 1, 32)])
def test_what_is_much_depends_on_torchs_threads(
    num_threads: int, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    assert most_rows() == rows
    part = CompiledAttention(HEADS, NORM, torch.ones(48, 16), torch.ones(16, 16))
    assert part.serves(2, columns // 2) and not part.serves(2, columns // 2 + 1)


def call_attention(part: CompiledAttention) -> None:
    angles = Angles(torch.ones(3, 4, 8), torch.ones(3, 4, 8))
    part.attend(torch.zeros(3, 16), torch.zeros(3, 9, 4, 8), 7, angles, torch.zeros(3, 1, 1, 7))


HEADS = Heads(2, 2, 8)
PARTS: dict[str, tuple[str, Callable[[], object], Callable[..., object]]] = {
    "projection": ("_project", lambda: CompiledProjection(NORM, torch.ones(5, 16)), lambda p: p(rows())),
    "head": (
        "_likeliest",
        lambda: CompiledHead(projection_weights(None, torch.ones(5, 16)), 5),
        lambda p: p(rows()),
    ),
    "feed forward": (
        "_feed_forward",
        lambda: CompiledFeedForward(feed_forward_weights(NORM, torch.ones(64, 16), torch.ones(16, 32), NORM)),
        lambda p: p(rows()),
    ),
    "attention": (
        "_attend",
        lambda: CompiledAttention(HEADS, NORM, torch.ones(48, 16), torch.ones(16, 16)),
        call_attention,
    ),
}


def rows() -> torch.Tensor:
    return torch.zeros(3, 16)


@pytest.mark.parametrize("name", PARTS)
def test_no_request_waits_for_the_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a part has called the function with the types that requests call it with."""
    function, make, call = PARTS[name]
    called: list[list[object]] = []

    def record(*arguments: object) -> None:
        flat = [part for each in arguments for part in (each if isinstance(each, tuple) else [each])]
        called.append([typeof(part) for part in flat])
        original(*arguments)

    original = getattr(round_layer, function)
    monkeypatch.setattr(round_layer, function, record)
    part = make()
    assert len(called) == 1
    call(part)
    assert len(called) == 2 and called[0] == called[1]
