from __future__ import annotations

from gateway.errors import UpstreamFailed
from gateway.fleet.memory import FleetMemory


def test_what_is_known_survives_a_reload() -> None:
    memory = FleetMemory()
    assert memory.budget("a") is memory.budget("a")
    assert memory.budget("a") is not memory.budget("b")
    assert memory.health("a", "url") is memory.health("a", "url")
    assert memory.health("a", "url") is not memory.health("a", "another url")


def test_what_goes_out_is_told() -> None:
    told: list[tuple[str, str]] = []
    memory = FleetMemory()
    health = memory.health("a", "url")
    memory.on_out = lambda model, trouble: told.append((model, trouble))
    health.failed("key_refused", UpstreamFailed("x"))
    assert told == [("a", "key_refused")]
