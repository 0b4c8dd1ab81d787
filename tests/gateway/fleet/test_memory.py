from __future__ import annotations

from gateway.fleet.memory import FleetMemory


def test_a_models_budget_survives_a_reload() -> None:
    memory = FleetMemory()
    assert memory.budget("a") is memory.budget("a")
    assert memory.budget("a") is not memory.budget("b")
