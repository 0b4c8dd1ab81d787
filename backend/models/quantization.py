"""Reads the quantization_config of a checkpoint's config.json. No torch.

Which modules are quantised is not read: their tensors tell, whatever lists and patterns a tool wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

from backend.config import ModelConfig, QuantizationConfig, WeightFormat, WeightScheme
from backend.errors import CheckpointError
from backend.models.config_reader import ConfigReader

logger = logging.getLogger(__name__)

_WHOLE, _ROWS = (0, 0), (1, 0)
"""Blocks of scales: one for all of the weight, one for each row."""


def read_quantization(reader: ConfigReader) -> QuantizationConfig | None:
    """How weights are stored; None: none is quantised. Raises CheckpointError for unknown methods."""
    found = reader.raw.get("quantization_config")
    if found is None:
        return None
    section = _section(reader, "quantization_config", found)
    method = found.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise section.unsupported("quant_method", method, ", ".join(map(repr, _METHODS)))
    return _METHODS[method](section)


def _gptq(section: ConfigReader) -> QuantizationConfig:
    version = section.raw.get("checkpoint_format") or section.raw.get("format") or "gptq"
    if version not in ("gptq", "gptq_v2"):
        raise section.unsupported("checkpoint_format", version, "'gptq' and 'gptq_v2'")
    formats = {_integers(section, 4, 8): None}
    for override in _section(section, "dynamic", section.raw.get("dynamic") or {}).raw.values():
        changes = _section(section, "dynamic", override or {}).raw  # of modules whose names match a pattern
        formats[_integers(ConfigReader(section.path, {**section.raw, **changes}), 4, 8)] = None
    is_reordered = bool(section.raw.get("desc_act")) and not section.raw.get("static_groups")
    is_reordered &= any(each.block[1] for each in formats)  # a row with one scale has no order
    return QuantizationConfig("gptq" if version == "gptq" else "gptq_v2", tuple(formats), is_reordered)


def _awq(section: ConfigReader) -> QuantizationConfig:
    version = str(section.raw.get("version") or section.raw.get("format") or "gemm").lower()
    if version != "gemm":
        raise section.unsupported("version", version, "'gemm'")
    if not section.raw.get("zero_point", True):
        raise section.unsupported("zero_point", False, "true")
    return QuantizationConfig("awq", (_integers(section, 4),))


def _fp8(section: ConfigReader) -> QuantizationConfig:
    """One scale for each block, or each row, or each weight."""
    has_blocks = section.raw.get("weight_block_size") is not None
    blocks = [_rows_and_columns(section, "weight_block_size")] if has_blocks else [_WHOLE, _ROWS]
    is_dynamic = section.raw.get("activation_scheme", "dynamic") == "dynamic"
    formats = (WeightFormat("fp8", 8, each, is_packed=False, rounds_inputs=is_dynamic) for each in blocks)
    return QuantizationConfig("fp8", tuple(formats))


def _mxfp4(section: ConfigReader) -> QuantizationConfig:
    """Blocks of 32, which no key changes."""
    return QuantizationConfig("mxfp4", (WeightFormat("mxfp4", 4, (1, 32)),))


def _integers(section: ConfigReader, *known: int) -> WeightFormat:
    """The format of GPTQ and AWQ: words of integers with zero points."""
    bits = section.positive("bits")
    if bits not in known:
        raise section.unsupported("bits", bits, " and ".join(map(str, known)))
    group = 0 if section.raw.get("group_size") == -1 else section.positive("group_size")
    return WeightFormat("int4" if bits == 4 else "w8a16", bits, (1, group), is_symmetric=False)


def check_unquantized(model: ModelConfig) -> None:
    """Raise CheckpointError where weights are quantised already, so that none can be rounded again."""
    if model.quantization is not None:
        raise CheckpointError(
            f"{model.checkpoint} is quantised already ({model.quantization.method}): remove `quantize`, or "
            "give the unquantised checkpoint"
        )


def _compressed_tensors(section: ConfigReader) -> QuantizationConfig:
    sparsity = _section(section, "sparsity_config", section.raw.get("sparsity_config") or {}).raw
    if sparsity.get("format", "dense") != "dense":
        raise section.unsupported("sparsity_config", sparsity["format"], "'dense'")
    if section.raw.get("transform_config"):
        raise section.unsupported("transform_config", section.raw["transform_config"], "none")
    if section.raw.get("kv_cache_scheme") is not None:
        logger.warning("%s: 'kv_cache_scheme' is ignored; kv_dtype sets how keys are stored", section.path)
    groups = section.raw.get("config_groups")
    if not isinstance(groups, dict):
        raise section.error("config_groups", groups, "an object")
    formats = [_group_format(section, _section(section, "config_groups", group)) for group in groups.values()]
    found = tuple(dict.fromkeys(each for each in formats if each is not None))
    return QuantizationConfig("compressed-tensors", found)


_PACKED, _PLAIN = "pack-quantized", ("int-quantized", "float-quantized", "naive-quantized")
_MXFP4 = "mxfp4-pack-quantized"


def _group_format(section: ConfigReader, group: ConfigReader) -> WeightFormat | None:
    """The format of the modules of one config group; None where their weights are not quantised."""
    if group.raw.get("weights") is None:
        return None
    weights = _section(group, "weights", group.raw["weights"])
    stored = group.raw.get("format") or section.raw.get("format")
    bits, kind = weights.positive("num_bits"), str(weights.raw.get("type", "int"))
    is_symmetric = weights.raw.get("symmetric") is not False
    inputs = _section(group, "input_activations", group.raw.get("input_activations") or {}).raw
    schemes: dict[object, WeightScheme] = {}
    if stored == _PACKED:
        schemes = {("int", 4): "int4", ("int", 8): "w8a16"}
    elif stored == _MXFP4:
        schemes = {("float", 4): "mxfp4"}
    elif stored in _PLAIN:
        schemes = {("int", 8): "int8" if inputs else "w8a16", ("int", 4): "int4", ("float", 8): "fp8"}
    else:
        raise section.unsupported("format", stored, ", ".join(map(repr, (_PACKED, *_PLAIN, _MXFP4))))
    if (kind, bits) not in schemes or not (is_symmetric or kind == "int"):
        known = " and ".join(f"{name} of {size} bits" for name, size in cast("Any", schemes))
        raise weights.unsupported("weights", f"{kind} of {bits} bits", f"{known} in {stored!r}")
    scheme = schemes[kind, bits]
    rounds_inputs = scheme == "fp8" and inputs.get("dynamic") is True and inputs.get("num_bits") == 8
    return WeightFormat(scheme, bits, _block(weights), is_symmetric, stored not in _PLAIN, rounds_inputs)


def _block(weights: ConfigReader) -> tuple[int, int]:
    strategy = weights.raw.get("strategy")
    if strategy == "group":
        return 1, weights.positive("group_size")
    if strategy == "block":
        return _rows_and_columns(weights, "block_structure")
    if strategy not in ("tensor", "channel"):
        raise weights.unsupported("strategy", strategy, "'tensor', 'channel', 'group' and 'block'")
    return _WHOLE if strategy == "tensor" else _ROWS


def _rows_and_columns(section: ConfigReader, key: str) -> tuple[int, int]:
    match section.raw.get(key):
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
        case found:
            raise section.error(key, found, "rows and columns, as in [128, 128]")


def _section(reader: ConfigReader, key: str, found: object) -> ConfigReader:
    if not isinstance(found, dict):
        raise reader.error(key, found, "an object")
    return ConfigReader(reader.path, found)


_METHODS: dict[str, Callable[[ConfigReader], QuantizationConfig]] = {
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
