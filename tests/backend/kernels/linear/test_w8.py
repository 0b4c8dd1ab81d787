"""Weights of 8 bits stay so: values, company, and a checkpoint's layers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from backend.kernels.linear.w8 import Device8BitWeight
from tests.backend.kernels.whole import tokens
from tests.backend.models import quantized as formats
from tests.backend.models.checkpoints import VARIANTS
from tests.backend.models.quantized import Json, Pack, write_pair

pytestmark = pytest.mark.timeout(300)
LAYERS = 2
BLOCKS: Json = formats.FP8_BLOCKS | {"weight_block_size": [32, 128]}


def by_blocks(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """One scale for 32 rows."""
    assert weight.shape[1] <= 128
    scales = torch.stack([part.abs().amax()[None] for part in weight.split(32)]) / 448
    spread = scales.repeat_interleave(32, 0)[: len(weight)]
    values = (weight / spread).to(torch.float8_e4m3fn)
    return {".weight": values, ".weight_scale_inv": scales}, values.float() * spread


def test_blocks_of_whole_units_fit() -> None:
    values = torch.zeros(4, 300, dtype=torch.int8)
    fits = Device8BitWeight.fits
    assert (
        fits(values, (1, 300)) and fits(values.to(torch.float8_e4m3fn), (128, 128)) and fits(values, (1, 256))
    )
    assert (
        not fits(values, (128, 64)) and not fits(values.half(), (1, 300)) and not fits(values[:0], (1, 300))
    )


def rows_alone_and_beside_nan() -> None:
    from tests.backend.kernels.interpreted import widen_products
    from tests.backend.kernels.linear.cases import ByteShape, byte_product
    from tests.backend.kernels.linear.company import check_company

    widen_products()
    for shape in (ByteShape(1, columns=40, features=1024), ByteShape(1, 33, 90, block=(1, 90))):
        weight, dense, _ = byte_product(shape)
        check_company(weight, shape.features)
        torch.testing.assert_close(weight.weight.double(), dense, rtol=1e-6, atol=1e-6)


def rounded_rows() -> None:
    """Many rows of one class, in company and beside what is not finite."""
    from tests.backend.kernels.linear.cases import ByteShape, byte_product

    for dtype in (torch.float8_e4m3fn, torch.int8):
        weight, dense, _ = byte_product(ByteShape(1, 40, 600, dtype=dtype, rounds_inputs=True))
        x = torch.randn(140, 600)
        whole = weight(x)
        assert torch.equal(weight(x[:65]), whole[:65])
        assert torch.equal(weight(x[64:]), whole[64:])  # the interpreter's BLAS sums by place in a tile
        x[1::2] = float("nan")
        x[::20, 3] = float("inf")
        found = weight(x)
        assert found[1::2].isnan().all() and not found[::20].isfinite().any()
        assert torch.equal(found[2:20:2], whole[2:20:2])
        exact = x[2:20:2].double() @ dense.T
        assert 1e-3 < (found[2:20:2] - exact).norm() / exact.norm() < 0.04


def memory_beside_the_result() -> None:
    """Prefill's result is written at once: no sums of float32, twice its size, are kept beside it."""
    from tests.backend.kernels.linear.cases import ByteShape, byte_product

    weight, _, _ = byte_product(ByteShape(1, 40, 256, rounds_inputs=True))
    x, empty, taken = torch.randn(300, 256).bfloat16(), torch.empty, list[torch.Tensor]()

    def seen(*size: int, **options: Any) -> torch.Tensor:  # noqa: ANN401 - torch's own
        taken.append(empty(*size, **options))
        return taken[-1]

    with patch.object(torch, "empty", seen):
        found = weight(x)
    assert [each.shape for each in taken if each.numel() >= found.numel()] == [(300, 40), (300, 256)]


def rounded_where_the_gpu_can() -> None:
    """Triton multiplies int8 from compute capability 8.0 on, float8 from 8.9 on."""
    from backend.kernels.linear import kernel
    from tests.backend.kernels.linear.cases import ByteShape, byte_product

    x = torch.randn(65, 90)
    for arch, *rounds in ((75, False, False), (80, True, False), (89, True, True), (0, True, True)):
        for dtype, is_rounded in zip((torch.int8, torch.float8_e4m3fn), rounds, strict=True):
            weight, dense, _ = byte_product(ByteShape(1, 33, 90, (1, 90), dtype, rounds_inputs=True))
            with patch.object(kernel, "architecture", lambda arch=arch: arch):
                error = (weight(x) - x.double() @ dense.T).norm() / (x.double() @ dense.T).norm()
            assert (1e-3 < error < 0.04) if is_rounded else error < 1e-5, (arch, dtype, error)


def layers_by_format() -> None:
    from backend.layers.linear import Linear
    from backend.quant.schemes import QuantizedWeight

    floats = torch.randn(6, 64).to(torch.float8_e4m3fn)
    integers = torch.randint(-127, 128, (6, 64), dtype=torch.int8)
    x = torch.randn(65, 64)
    for scheme, values, rounds_inputs, rounds in (
        ("int8", integers, False, True),
        ("w8a16", integers, False, False),
        ("fp8", floats, True, True),
        ("fp8", floats, False, False),
    ):
        stored = QuantizedWeight(scheme, values, torch.rand(6, 1), (1, 64), rounds_inputs=rounds_inputs)
        exact = x @ stored.dequantize().T
        error = (Linear([stored], None, "plain")(x) - exact).norm() / exact.norm()
        assert (error > 1e-3) == rounds, (scheme, error)


def play(checkpoint: str) -> tuple[list[list[int]], int]:
    """A checkpoint's tokens, and how many weights of 8 bits computed them."""
    multiply, used = Device8BitWeight.__call__, set()

    def seen(weight: Device8BitWeight, x: torch.Tensor) -> torch.Tensor:
        used.add(id(weight))
        return multiply(weight, x)

    with patch.object(Device8BitWeight, "__call__", seen):
        return tokens(checkpoint), len(used)


@pytest.mark.parametrize(
    "check",
    [
        rows_alone_and_beside_nan,
        rounded_rows,
        memory_beside_the_result,
        rounded_where_the_gpu_can,
        layers_by_format,
    ],
)
def test_in_the_interpreter(interpreter: Executor, check: Callable[[], None]) -> None:
    interpreter.submit(check).result()


@pytest.mark.parametrize(
    ("name", "config", "pack", "others"),
    [
        ("qwen3", BLOCKS, by_blocks, 4 * LAYERS),
        ("mixtral", formats.FP8, formats.fp8, 2 * LAYERS),  # beside its experts
    ],
)
def test_a_checkpoint_keeps_its_8_bits(
    interpreter: Executor, tmp_path: Path, name: str, config: Json, pack: Pack, others: int
) -> None:
    variant = next(each for each in VARIANTS if each.name == name)
    short = replace(variant, changes=variant.changes | {"num_hidden_layers": LAYERS})
    quantized, plain = write_pair(short, tmp_path, config, pack)
    found, used = interpreter.submit(play, str(quantized)).result()
    assert found == tokens(str(plain)) and used == others
