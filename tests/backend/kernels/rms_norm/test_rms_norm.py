"""RMSNorm against its formula in float64."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.rms_norm import add_rms_norm, rms_norm

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 8), (3, 63), (5, 4, 32), (40, 300), (0, 8)])
@pytest.mark.parametrize("is_dense", [True, False])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...], *, is_dense: bool) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = x if is_dense else torch.cat((x, x), -1)[..., : shape[-1]]
    weight = torch.linspace(-1, 2, shape[-1]).to(dtype)
    exact = x.double()
    expected = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    result = rms_norm(x, weight, 1e-5)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_rms_norm_of_zeros_and_of_tiny_values() -> None:
    weight = torch.ones(16)
    assert torch.equal(rms_norm(torch.zeros(2, 16), weight, 1e-6), torch.zeros(2, 16))
    tiny = torch.full((1, 16), 1e-4)
    torch.testing.assert_close(rms_norm(tiny, weight, 1e-6), tiny / (1e-8 + 1e-6) ** 0.5)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_the_same_in_any_company(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kernels.rms_norm.num_threads", lambda _: threads)
    x, weight = torch.randn(50, 33), torch.randn(33)
    x[3, 5] = float("nan")
    together = rms_norm(x, weight, 1e-6)
    for row in (0, 16, 49):
        assert torch.equal(rms_norm(x[row : row + 1], weight, 1e-6)[0], together[row])
    assert together[3].isnan().all() and together[:3].isfinite().all() and together[4:].isfinite().all()


@pytest.mark.parametrize("begin", [0, 6])
def test_a_part_of_wider_rows_is_the_same_in_any_company(begin: int) -> None:
    """One row's part is contiguous, several rows' are not; also where heads are flattened."""
    heads = torch.randn(31, 8, 16, generator=torch.Generator().manual_seed(begin))[:, begin : begin + 2]
    for part in (heads, heads.flatten(1)):
        weight = torch.linspace(-1, 2, part.shape[-1])
        together = rms_norm(part, weight, 1e-6)
        alone = torch.cat([rms_norm(part[row : row + 1], weight, 1e-6) for row in range(len(part))])
        assert not part.is_contiguous() and part[:1].is_contiguous() and torch.equal(together, alone)
        assert torch.equal(together, rms_norm(part.contiguous(), weight, 1e-6))


def test_the_largest_numbers_give_zeros() -> None:
    x = torch.full((2, 24), torch.finfo(torch.float32).max)
    assert torch.equal(rms_norm(x, torch.full((24,), 1.5), 1e-6), torch.zeros(2, 24))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("is_dense", [True, False])
def test_a_sum_is_that_of_torch_and_is_normalised_as_it_is_stored(
    dtype: torch.dtype, *, is_dense: bool
) -> None:
    stream, added = torch.randn(5, 48).to(dtype), torch.randn(5, 48).to(dtype)
    added = added if is_dense else torch.cat((added, added), -1)[:, :48]
    weight, want = torch.rand(48).to(dtype), stream + added
    found = add_rms_norm(stream, added, weight, 1e-6)
    assert torch.equal(stream, want) and torch.equal(found, rms_norm(want, weight, 1e-6))


@pytest.mark.parametrize("shape", [(16,), (3, 16)])
def test_a_weight_of_32_bits_is_multiplied_before_rounding(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 3, 16).bfloat16(), 1 + 0.1 * torch.randn(shape)
    expected = torch.nn.functional.rms_norm(x.float(), (16,), None, 1e-6) * weight
    assert torch.equal(rms_norm(x, weight, 1e-6), expected.bfloat16())
    assert not torch.equal(rms_norm(x, weight.bfloat16(), 1e-6), expected.bfloat16())
