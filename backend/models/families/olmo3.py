"""OLMo 3: OLMo 2 with a sliding window in three of four layers."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families import olmo2
from backend.models.families.family import Family
from backend.models.layer_specs import typed_layers, windowed
from backend.models.rope_config import FULL, SLIDING, read_ropes


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Sliding layers are rotated without the scaling of full attention, as transformers reads them."""
    ropes = read_ropes(reader, local_theta=reader.number("rope_theta"))
    full = olmo2.read_normed(reader, ropes[FULL])
    sliding = windowed(reader, replace(full, rope=ropes[SLIDING]))
    return typed_layers(reader, full, sliding, lambda layer: (layer + 1) % 4 != 0)


FAMILY = Family(
    architecture="Olmo3ForCausalLM",
    model_type="olmo3",
    defaults={**olmo2.DEFAULTS, "rope_theta": 500_000.0, "sliding_window": 4096},
    names=olmo2.NAMES,
    read_layers=read_layers,
    read_scalars=lambda reader: Scalars(exact_norms=True),
)
