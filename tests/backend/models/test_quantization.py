"""Quantised checkpoints: their configuration, and models that compute as their weights in floats would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.config import EngineConfig, QuantizationConfig, WeightFormat
from backend.errors import CheckpointError
from backend.kernels.experts import FusedExperts
from backend.kernels.linear import paired
from backend.kernels.linear.int4 import Int4Weight
from backend.models import precision
from backend.models.config_reader import ConfigReader
from backend.models.loaded import load_model
from backend.models.quantization import read_quantization
from tests.backend.lora import making
from tests.backend.models import quantized as formats
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.quantized import Json, Pack, compressed, quantize, write_pair

BY_NAME = {variant.name: variant for variant in VARIANTS}


def parse(section: object) -> QuantizationConfig | None:
    return read_quantization(ConfigReader(Path("config.json"), {"quantization_config": section}))


GPTQ: Json = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}
AWQ: Json = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
FP8: Json = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
TOKENS: Json = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
WEIGHTS: Json = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
PACKED = compressed(WEIGHTS, "pack-quantized")


CHANNELS: Json = WEIGHTS | {"num_bits": 8, "strategy": "channel"}
FLOATS: Json = {"num_bits": 8, "type": "float", "strategy": "channel"}


def integers(bits: int, group: int) -> WeightFormat:
    """The format of GPTQ and AWQ."""
    return WeightFormat("int4" if bits == 4 else "w8a16", bits, (1, group), is_symmetric=False)


def fp8(rows: int, columns: int, *, rounds_inputs: bool = False) -> WeightFormat:
    return WeightFormat("fp8", 8, (rows, columns), is_packed=False, rounds_inputs=rounds_inputs)


@pytest.mark.parametrize(
    ("section", "method", "expected"),
    [
        (GPTQ, "gptq", [integers(4, 128)]),
        (GPTQ | {"bits": 8, "group_size": -1}, "gptq", [integers(8, 0)]),
        (GPTQ | {"checkpoint_format": "gptq_v2"}, "gptq_v2", [integers(4, 128)]),
        (
            GPTQ | {"dynamic": {"-:.*q": {}, "+:.*k": {"group_size": 32}, "+:.*v": {"bits": 8}}},
            "gptq",
            [integers(4, 128), integers(4, 32), integers(8, 128)],
        ),
        (AWQ, "awq", [integers(4, 64)]),
        ({"quant_method": "mxfp4"}, "mxfp4", [WeightFormat("mxfp4", 4, (1, 32))]),
        (FP8, "fp8", [fp8(128, 128, rounds_inputs=True)]),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", [fp8(0, 0), fp8(1, 0)]),
    ],
)
def test_formats(section: Json, method: str, expected: list[WeightFormat]) -> None:
    found = parse(section)
    assert found is not None
    assert (found.method, list(found.formats)) == (method, expected)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (PACKED, WeightFormat("int4", 4, (1, 32))),
        (
            compressed(CHANNELS | {"symmetric": False}, "pack-quantized"),
            WeightFormat("w8a16", 8, (1, 0), is_symmetric=False),
        ),
        (
            compressed(CHANNELS | {"strategy": "tensor"}, "int-quantized", TOKENS),
            WeightFormat("int8", 8, (0, 0), is_packed=False),
        ),
        (compressed(CHANNELS, "naive-quantized"), WeightFormat("w8a16", 8, (1, 0), is_packed=False)),
        (
            compressed(FLOATS | {"strategy": "block", "block_structure": [128, 64]}, "float-quantized"),
            fp8(128, 64),
        ),
        (
            compressed(FLOATS, "float-quantized", TOKENS | {"type": "float"}),
            fp8(1, 0, rounds_inputs=True),
        ),
        (
            compressed(FLOATS, "float-quantized", TOKENS | {"type": "float", "dynamic": False}),
            fp8(1, 0),
        ),
        (compressed(WEIGHTS | {"type": "float"}, "mxfp4-pack-quantized"), WeightFormat("mxfp4", 4, (1, 32))),
        (
            PACKED | {"sparsity_config": {"format": "dense", "ignore": ["lm_head"]}, "transform_config": {}},
            WeightFormat("int4", 4, (1, 32)),
        ),
    ],
)
def test_formats_of_compressed_tensors(section: Json, expected: WeightFormat) -> None:
    assert parse(section) == QuantizationConfig("compressed-tensors", (expected,))


def test_groups_of_modules_may_have_formats_of_their_own() -> None:
    groups = {
        "a": {"weights": WEIGHTS, "format": "pack-quantized"},
        "b": {"weights": FLOATS, "format": "float-quantized"},
        "c": {"weights": None, "input_activations": TOKENS},
    }
    found = parse(PACKED | {"format": "mixed-precision", "config_groups": groups})
    assert found is not None
    assert [each.scheme for each in found.formats] == ["int4", "fp8"]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("gptq", "'quantization_config' is 'gptq', expected an object"),
        ({}, "'quant_method' None is not supported, only 'awq', 'compressed-tensors', 'fp8', 'gptq'"),
        ({"quant_method": "bitsandbytes"}, "'quant_method' 'bitsandbytes' is not"),
        ({"quant_method": ["gptq"]}, "'quant_method' ['gptq'] is not"),
        (GPTQ | {"bits": 3}, "'bits' 3 is not supported, only 4 and 8"),
        (GPTQ | {"group_size": 0}, "'group_size' is 0, expected a positive"),
        (GPTQ | {"checkpoint_format": "marlin"}, "'checkpoint_format' 'marlin' is not"),
        (GPTQ | {"dynamic": {"+:.*": {"bits": 2}}}, "'bits' 2 is not"),
        (GPTQ | {"dynamic": [1]}, "'dynamic' is [1], expected an object"),
        (AWQ | {"bits": 8}, "'bits' 8 is not supported, only 4"),
        (AWQ | {"version": "gemv"}, "'version' 'gemv' is not"),
        (AWQ | {"zero_point": False}, "'zero_point' False is not"),
        (FP8 | {"weight_block_size": [128]}, "'weight_block_size' is [128], expected rows and columns"),
        (FP8 | {"weight_block_size": [0, 128]}, "'weight_block_size' is [0, 128]"),
        (FP8 | {"weight_block_size": 128}, "'weight_block_size' is 128"),
        (PACKED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "'sparsity_config' 'sparse-24"),
        (PACKED | {"sparsity_config": [2, 4]}, "'sparsity_config' is [2, 4], expected an object"),
        (PACKED | {"transform_config": {"config_groups": {"R1": {}}}}, "'transform_config'"),
        (PACKED | {"config_groups": None}, "'config_groups' is None"),
        (PACKED | {"config_groups": {"a": 1}}, "'config_groups' is 1"),
        (PACKED | {"format": "nvfp4-pack-quantized"}, "'format' 'nvfp4-pack-quantized' is not"),
        (PACKED | {"format": None}, "'format' None is not"),
        (compressed(WEIGHTS | {"num_bits": 3}, "pack-quantized"), "'weights' 'int of 3 bits' is not"),
        (compressed(WEIGHTS | {"type": "float"}, "pack-quantized"), "'weights' 'float of 4 bits' is not"),
        (compressed(WEIGHTS | {"type": ["int"]}, "pack-quantized"), "'weights' \"['int'] of 4 bits\" is not"),
        (compressed(WEIGHTS | {"strategy": "tensor_group"}, "pack-quantized"), "'strategy' 'tensor_group'"),
        (compressed(WEIGHTS | {"strategy": None}, "pack-quantized"), "'strategy' None"),
        (compressed(WEIGHTS | {"strategy": "block"}, "int-quantized"), "'block_structure' is None"),
        (compressed(FLOATS | {"symmetric": False}, "float-quantized"), "'weights' 'float of 8 bits' is not"),
    ],
)
def test_what_is_not_read_is_refused_by_name(section: object, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(section)
    assert "config.json" in str(caught.value)
    assert problem in str(caught.value)


def test_the_scheme_of_keys_and_values_is_said_to_be_ignored(caplog: pytest.LogCaptureFixture) -> None:
    parse(PACKED | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    assert "'kv_cache_scheme' is ignored; kv_dtype" in caplog.text


def logits(folder: Path) -> Tensor:
    driver = Driver(load_model(EngineConfig(model="m", checkpoint=str(folder), device="cpu")))
    track = Track(random_tokens(40, seed=1))
    return torch.cat([driver.step([(track, count)])[0] for count in (30, 1, 9)])


@pytest.mark.parametrize(
    ("config", "pack"),
    [
        (formats.GPTQ, formats.gptq),
        (formats.AWQ, formats.awq),
        (formats.INT8, formats.int8),
        (formats.FP8, formats.fp8),
        (formats.FP8_BLOCKS, formats.fp8_blocks),
    ],
)
@pytest.mark.parametrize("family", ["qwen3", "mixtral", "qwen3-moe"])
def test_logits_are_those_of_the_weights_in_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, config: Json, pack: Pack
) -> None:
    """Within the rounding of x to 8 bits, where the format asks for that."""
    # Quantised experts have no fused loop, which adds in another order.
    monkeypatch.setattr(FusedExperts, "fits", lambda *_: False)
    quantized, plain = write_pair(BY_NAME[family], tmp_path, config, pack)
    with monkeypatch.context() as context:
        context.setattr(Int4Weight, "fits", lambda *_: False)
        found, expected = logits(quantized), logits(plain)
    if config is formats.INT8:
        # A router may choose another expert.
        assert (found - expected).abs().mean() < 0.15 * expected.std()
    else:
        assert torch.equal(found, expected)
        # 4 bits have a product, which rounds x to bfloat16: there too, a router may choose otherwise.
        assert (logits(quantized) - expected).abs().mean() < 0.06 * expected.std()


@pytest.mark.parametrize("pack", [formats.gptq, formats.awq])
def test_weights_without_a_product_are_bfloat16_in_a_16_bit_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Pack
) -> None:
    """Then they have the fastest layout."""
    if not paired.is_available():
        pytest.skip("this processor does not multiply bfloat16")
    monkeypatch.setattr(precision, "is_small", lambda _: False)
    monkeypatch.setattr(Int4Weight, "fits", lambda *_: False)
    config = formats.GPTQ if pack is formats.gptq else formats.AWQ
    quantized, plain = write_pair(BY_NAME["qwen3"], tmp_path, config, pack, torch.bfloat16)
    assert torch.equal(logits(quantized), logits(plain))


def test_biases_of_zeros_are_ignored_and_others_refused(tmp_path: Path) -> None:
    """Tools write the former for modules that have none."""
    quantized, _ = write_pair(BY_NAME["qwen3"], tmp_path, formats.AWQ, formats.awq)
    path, name = quantized / "model.safetensors", "model.layers.0.mlp.up_proj.bias"
    tensors = load_file(path) | {name: torch.zeros(96)}
    save_file(tensors, path)
    logits(quantized)
    tensors[name][5] = 0.1
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"safetensors: '{name}' is a bias, which"):
        logits(quantized)


def test_a_head_and_a_router_may_be_quantised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FusedExperts, "fits", lambda *_: False)
    write_checkpoint(BY_NAME["qwen3-moe"], tmp_path / "plain")
    others = ("lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(3)))
    quantized, plain = quantize(tmp_path / "plain", formats.FP8, formats.fp8, others)
    assert torch.equal(logits(quantized), logits(plain))


def test_one_projection_of_a_stack_may_stay_in_floats(tmp_path: Path) -> None:
    quantized, plain = write_pair(BY_NAME["qwen3"], tmp_path, formats.INT8, formats.int8)
    path, name = quantized / "model.safetensors", "model.layers.{}.{}.weight"
    tensors, floats = load_file(path), load_file(plain / "model.safetensors")
    for layer in range(3):
        for module in ("self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
            tensors[name.format(layer, module)] = floats[name.format(layer, module)]
            del tensors[name.format(layer, module) + "_scale"]
    save_file(tensors, path)
    assert torch.equal(logits(quantized), logits(plain))


@pytest.mark.parametrize("ending", ["qzeros", "scales", "g_idx"])
def test_a_broken_tensor_is_refused_with_its_file(tmp_path: Path, ending: str) -> None:
    quantized, _ = write_pair(BY_NAME["qwen3"], tmp_path, formats.GPTQ, formats.gptq)
    path, name = quantized / "model.safetensors", f"model.layers.1.mlp.down_proj.{ending}"
    tensors = load_file(path)
    tensors[name] = tensors[name][1:].clone()
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as caught:
        logits(quantized)
    assert f"{path}: {name!r} " in str(caught.value)


def test_small_quantised_experts_are_not_read_again_for_the_fused_loop(tmp_path: Path) -> None:
    quantized, plain = write_pair(BY_NAME["mixtral"], tmp_path, formats.FP8, formats.fp8)
    torch.testing.assert_close(logits(quantized), logits(plain), atol=1e-4, rtol=1e-4)


def test_adapters_add_to_quantised_layers(tmp_path: Path) -> None:
    pair = write_pair(BY_NAME["qwen3"], tmp_path, formats.FP8, formats.fp8)
    found = []
    for folder in pair:
        config = EngineConfig(model="t", checkpoint=str(folder), device="cpu")
        model = load_model(config)
        store = making.make_store(model)
        info = store.load_now("a", making.write_adapter(tmp_path / "adapter", model, making.Recipe()))
        asked = [making.ask(name, [1, 2, 3], name, 12) for name in (info.digest, "")]
        found.append(making.texts(making.make_engine(config, model, store), asked))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
