"""SwiGLU against its formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backend.kernels.swiglu import gelu, sigmoid_gate, swiglu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 5), (40, 70)])
def test_swiglu(rows: int, size: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(rows, 2 * size, dtype=dtype) * 5
    gate, up = gate_up.double()[:, :size], gate_up.double()[:, size:]
    found = swiglu(gate_up)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), gate / (1 + (-gate).exp()) * up, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_the_same_in_any_company(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kernels.swiglu.num_threads", lambda _: threads)
    gate_up = torch.randn(50, 66)
    gate_up[3, 5], gate_up[4, 40], gate_up[5, :4] = (
        float("nan"),
        float("inf"),
        torch.tensor([1e4, -1e4, 90, -90]),
    )
    together = swiglu(gate_up)
    for row in range(50):
        torch.testing.assert_close(
            swiglu(gate_up[row : row + 1])[0], together[row], rtol=0, atol=0, equal_nan=True
        )
    assert together[3, 5].isnan() and not together[4, 7].isfinite() and together[5].isfinite().all()
    assert together[:3].isfinite().all() and together[6:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sigmoid_gate(dtype: torch.dtype) -> None:
    gate_up = torch.randn(40, 2 * 70, dtype=dtype) * 5
    gate, up = gate_up.double()[:, :70], gate_up.double()[:, 70:]
    found = sigmoid_gate(gate_up)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), up / (1 + (-gate).exp()), rtol=1e-5, atol=1e-5)
    for row in range(40):
        assert torch.equal(sigmoid_gate(gate_up[row : row + 1])[0], found[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gelu_of_a_left_part_and_of_whole_rows(dtype: torch.dtype) -> None:
    wide = torch.randn(40, 2 * 70, dtype=dtype) * 5
    wide[1, :4] = torch.tensor([0.0, 1e15, -1e15, -12.0])
    for x in (wide, wide[:, :70], wide[:1, :70], wide[:0]):
        found = gelu(x)
        assert found.dtype is dtype and found.is_contiguous()
        torch.testing.assert_close(
            found.double(), F.gelu(x.double(), approximate="tanh"), rtol=1e-5, atol=1e-6
        )
    wide[2, 0], wide[2, 1] = float("nan"), float("inf")
    assert gelu(wide)[2, 0].isnan() and gelu(wide)[2, 1].isposinf() and gelu(wide)[2, 2:].isfinite().all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_gelu_of_a_row_is_the_same_in_any_company(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kernels.swiglu.num_threads", lambda _: threads)
    for size in (1, 20, 33, 688, 1000):
        wide = torch.randn(50, 2 * size) * 3
        together = gelu(wide[:, :size])
        for row in range(50):
            assert torch.equal(gelu(wide[row : row + 1, :size].clone())[0], together[row])


def test_gelu_far_below_is_nothing() -> None:
    found = gelu(torch.tensor([[-1e30, -2e3, float("-inf"), float("nan"), 1e4]]))
    assert found[0, :3].abs().max() < 1e-20 and found[0, 3].isnan() and found[0, 4] == 1e4
