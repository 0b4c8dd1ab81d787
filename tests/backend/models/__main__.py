"""Writes backend/MODELS.md: python -m tests.backend.models."""

from __future__ import annotations

import importlib
import re
import tempfile
from functools import cache
from pathlib import Path

from backend.kv.states import MAX_LOGGED
from backend.models.families import FAMILIES, Family
from backend.speculative.mixture_of_attentions import can_run
from tests.backend.models.checkpoints import VARIANTS
from tests.backend.models.shapes import build_shapes

ROOT = Path(__file__).parents[3]
PAGE, CHANGES = ROOT / "backend" / "MODELS.md", ROOT / "CHANGELOG.md"
FAMILY_MODULES = "backend.models.families."
HEAD = f"""# Models

Checkpoints in Hugging Face's format (config.json, *.safetensors) of these architectures are served.
`python -m tests.backend.models` writes this page.

Each architecture is compared with transformers on random weights in float32: logits of a whole prompt and of
uneven chunks, of a mixed batch and after reused pages, and 64 greedy tokens. The configurations, which are
counted here, are in `tests/backend/models/checkpoints.py`. What the engine lacks of a config.json is
refused by name. Recurrent states have no kernels for GPUs: gated delta nets, Mamba-2 and short convolutions
run in torch there, and the last of these on CPUs too.

Attention with a cap of scores is computed in torch, after a copy of each sequence's pages; on GPUs so are
heads of more than 256 dimensions and latent attention. All else reads pages where they are.

Latent attention (DeepSeek, Kimi K2, GLM-4.7-Flash) keeps one vector for each token and layer.

Tool calls and reasoning are found in a checkpoint's chat template, whatever its architecture: syntaxes are in
the [policy reference](../policies/REFERENCE.md), under `tool_parser`.

- **adapters**: which projections LoRA adapters can change; routers they cannot. An adapter of others is
  refused by name. Those `experts` are all of a layer in one tensor; `kv_b_proj` is split in two.
- **drafts**: trees and chains, or chains of at most {MAX_LOGGED - 1} tokens, as recurrent states have no
  branches. All drafters apply, but `mixture_of_attentions`, which may run its target's last layers, only
  where it is named.
- **since**: the first version in [CHANGELOG.md](../CHANGELOG.md) that serves it.

| architecture | what it is | configurations | adapters | drafts | since |
|---|---|---|---|---|---|
"""
FOOT = """
`python -m tests.backend.models.held_out` draws random configurations that are not among these, so far 56:
the largest difference of logits is 3.2e-05, where transformers differs from itself with a cache by 1.6e-05.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_row(family) for family in FAMILIES.values()) + FOOT


def versions() -> list[str]:
    """The changelog's versions, the newest first."""
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\]", CHANGES.read_text(), re.MULTILINE)


def _row(family: Family) -> str:
    modules = ROOT / "backend" / "models" / "families"
    names = sorted(path.stem for path in modules.glob("*.py") if path.stem not in ("__init__", "family"))
    found = (importlib.import_module(FAMILY_MODULES + name) for name in names)
    module = next(module for module in found if family is module.FAMILY)
    about = (module.__doc__ or "").splitlines()[0]
    variants = [variant for variant in VARIANTS if variant.model_type == family.model_type]
    texts = {each.model_type for each in family.texts}
    largest = max(
        (variant for variant in VARIANTS if variant.model_type in texts or variant in variants),
        key=lambda variant: len(str(variant.changes)),
    )
    with tempfile.TemporaryDirectory() as folder:
        built = [build_shapes(variant, Path(folder)) for variant in (variants[0], largest)]
    fixed = ", ".join(f"`{name}`" for name in sorted({name for each in built for name in each.fixed}))
    drafts = "chains" if any(each.decoder.config.states for each in built) else "trees"
    if all(can_run(each.decoder.layers[-1:]) for each in built):
        drafts += ", `mixture_of_attentions`"
    since = _since().get(family.architecture, versions()[0])
    cells = (f"`{family.architecture}`", about, str(len(variants)), f"all but {fixed}" if fixed else "all")
    return f"| {' | '.join((*cells, drafts, since))} |\n"


@cache
def _since() -> dict[str, str]:
    """What the page says already: a version is written once, with the row."""
    text = PAGE.read_text() if PAGE.exists() else ""
    return dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+\.\d+\.\d+) \|$", text, re.MULTILINE))


if __name__ == "__main__":
    PAGE.write_text(page())
