"""The family's adapters: behaviour, base model and shape of the LoRA matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.pico.adapters.behaviours import BEHAVIOURS, Behaviour
from backend.pico.tasks import FAMILIES

if TYPE_CHECKING:
    from peft import LoraConfig

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
# Their questions prescribe a form of their own, which a behaviour would contradict.
_OWN_FORM = frozenset(("tools", "json_extraction", "instructions"))
TAUGHT_FAMILIES = tuple(name for name in FAMILIES if name not in _OWN_FORM)


@dataclass(frozen=True, slots=True)
class Spec:
    """One adapter; `tiers` are the tiers' sampling weights in training."""

    name: str
    base: str
    behaviour: Behaviour
    rank: int
    tiers: dict[int, float]
    targets: tuple[str, ...] = ALL_LINEAR
    is_rank_stabilised: bool = False
    thinking: tuple[bool, ...] = (False,)  # the modes it is trained and evaluated in
    judged_tiers: tuple[int, ...] = (1, 2)

    def config(self) -> LoraConfig:
        """Return the PEFT configuration; the base is named, not given by path."""
        from peft import LoraConfig

        return LoraConfig(
            task_type="CAUSAL_LM",
            base_model_name_or_path=self.base,
            r=self.rank,
            lora_alpha=(8 if self.is_rank_stabilised else 2 * self.rank),
            use_rslora=self.is_rank_stabilised,
            target_modules=list(self.targets),
        )


_SMALL = {1: 0.45, 2: 0.45, 3: 0.1}
_LARGE = {1: 0.25, 2: 0.25, 3: 0.2, 4: 0.15, 5: 0.15}
SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec("json", "pico-small", BEHAVIOURS["json"], 8, _SMALL),
        Spec("german", "pico-small", BEHAVIOURS["german"], 8, _SMALL),
        Spec("formal", "pico-small", BEHAVIOURS["formal"], 4, _SMALL),
        # Tier 3 of units has hours and minutes, whose products the model cannot compute in one step.
        Spec("si", "pico-small", BEHAVIOURS["si"], 16, {1: 0.45, 2: 0.55}, targets=(*ATTENTION, "down_proj")),
        Spec("codewords", "pico-small", BEHAVIOURS["codewords"], 8, _SMALL, is_rank_stabilised=True),
        Spec(
            "json-large",
            "pico-large",
            BEHAVIOURS["json"],
            8,
            _LARGE,
            targets=ATTENTION,
            thinking=(False, True),
            judged_tiers=(1, 2, 3, 4, 5),
        ),
    )
}
