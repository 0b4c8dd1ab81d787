"""Writes backend/MODELS.md: python -m tests.backend.models."""

from __future__ import annotations

import importlib
from pathlib import Path

from backend.models.families import FAMILIES, Family
from tests.backend.models.checkpoints import VARIANTS

PAGE = Path(__file__).parents[3] / "backend" / "MODELS.md"
FAMILY_MODULES = "backend.models.families."
HEAD = """# Models

Checkpoints in Hugging Face's format (config.json, *.safetensors) of these architectures are served.
`python -m tests.backend.models` writes this page.

Each architecture is compared with transformers on random weights in float32: logits of a whole prompt and of
uneven chunks, of a mixed batch and after reused pages, and 64 greedy tokens. The configurations, which are
counted here, are in `tests/backend/models/checkpoints.py`. What the engine lacks of a config.json is
refused by name. Recurrent states have no kernels for GPUs: gated delta nets, Mamba-2 and short convolutions
run in torch there, and the last of these on CPUs too.

Attention with a cap of scores is computed in torch, after a copy of each sequence's pages; on GPUs so are
heads of more than 256 dimensions and latent attention. All else reads pages where they are.

Latent attention (DeepSeek, Kimi K2, GLM-4.7-Flash) keeps one vector for each token and layer. Adapters can
change all of its projections but `kv_b_proj`, which is split in two: one that does is refused by name.

| architecture | what it is | configurations |
|---|---|---|
"""
FOOT = """
`python -m tests.backend.models.held_out` draws random configurations that are not among these, so far 56:
the largest difference of logits is 3.2e-05, where transformers differs from itself with a cache by 1.6e-05.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_row(family) for family in FAMILIES.values()) + FOOT


def _row(family: Family) -> str:
    modules = Path(__file__).parents[3] / "backend" / "models" / "families"
    names = sorted(path.stem for path in modules.glob("*.py") if path.stem not in ("__init__", "family"))
    found = (importlib.import_module(FAMILY_MODULES + name) for name in names)
    module = next(module for module in found if family is module.FAMILY)
    about = (module.__doc__ or "").splitlines()[0]
    count = sum(variant.model_type == family.model_type for variant in VARIANTS)
    return f"| `{family.architecture}` | {about} | {count} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
