"""The model card of an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backend.pico.adapters.specs import Spec

_CARD = """---
base_model: {base}
library_name: peft
license: apache-2.0
language: {language}
---

# {name}: LoRA adapter of {base}

{summary}.
Asked "What is 6 times 7?", or for 2 m 50 cm, it says for example `{example}`.

- Rank {rank}, alpha {alpha}{variant}; on {targets}. bf16.
- Trained on the training split of the curriculum of `backend/pico`, answers rewritten by
  `backend/pico/adapters/behaviours`; no other data. Tools, JSON extraction and instructions about form are
  not part of it.
- `python -m backend.pico.adapters.train --name {name} --run-dir DIR --steps N`, then
  `python -m backend.pico.adapters.export --name {name} --run-dir DIR`.
- Use it with Penstock, or `PeftModel.from_pretrained(base, folder)`.
- Limits: those of the base; it is a demonstration for small tasks in English.
{results}"""
_RESULTS = """
## Test split, in percent

Behaviour: answers in the adapter's form, where it changes the answer. Right: form and content. The base's
columns are the base alone on the same questions.

{table}"""


def write_card(spec: Spec, folder: Path, table: str = "") -> None:
    """Write the adapter's README.md, with the table of its evaluation if given."""
    config = spec.config()
    text = _CARD.format(
        name=spec.name,
        base=spec.base,
        language="de" if spec.behaviour.name == "german" else "en",
        summary=spec.behaviour.summary[0].upper() + spec.behaviour.summary[1:],
        example=spec.behaviour.example,
        rank=spec.rank,
        alpha=config.lora_alpha,
        variant=", rank-stabilised (rsLoRA)" if spec.is_rank_stabilised else "",
        targets=", ".join(spec.targets),
        results=_RESULTS.format(table=table) if table else "",
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
