"""The adapters of the family: which behaviour on which base, and the shape of the LoRA matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.pico.adapters.behaviours import BEHAVIOURS, Behaviour
from backend.pico.tasks import FAMILIES

if TYPE_CHECKING:
    from peft import LoraConfig

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
# These prescribe a form of their own, which a behaviour would contradict.
_OWN_FORM = frozenset(("tools", "json_extraction", "instructions"))
TAUGHT_FAMILIES = tuple(name for name in FAMILIES if name not in _OWN_FORM)


@dataclass(frozen=True, slots=True)
class Spec:
    """One adapter; `tiers` are the shares of the tiers in training."""

    name: str
    base: str
    behaviour: Behaviour
    rank: int
    tiers: dict[int, float]
    targets: tuple[str, ...] = ALL_LINEAR
    is_rank_stabilised: bool = False
    thinking: tuple[bool, ...] = (False,)  # the modes it is trained and judged in
    judged_tiers: tuple[int, ...] = (1, 2)

    def config(self) -> LoraConfig:
        """The adapter as PEFT describes it; the base goes by its name, wherever it is stored."""
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
        # Tier 3 of the units is hours and minutes, whose products it cannot work out in one go.
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
