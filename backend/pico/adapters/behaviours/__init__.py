"""The behaviours that adapters teach, one per file; BEHAVIOURS maps names to them."""

from __future__ import annotations

from backend.pico.adapters.behaviours import codewords, formal, german, json_object, si_units
from backend.pico.adapters.behaviours.base import Behaviour, transform

__all__ = ["BEHAVIOURS", "Behaviour", "transform"]

BEHAVIOURS: dict[str, Behaviour] = {
    module.BEHAVIOUR.name: module.BEHAVIOUR for module in (json_object, german, formal, si_units, codewords)
}
