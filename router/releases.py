"""Which version of a model gets a request: its stable release, and a canary for some users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from policies.document import ModelEntry
from policies.releases import UNUSED


@dataclass(frozen=True, slots=True)
class Released:
    """The releases of one model."""

    stable: str  # the model itself without a stable release
    canary: str = ""
    share: float = 0.0  # of the canary

    @property
    def names(self) -> list[str]:
        """All that may get a request."""
        return [self.stable, *([self.canary] if self.canary and self.share else [])]

    def choose(self, draw: float) -> str:
        """`draw`: from 0 to below 1, always the same for a user."""
        return self.canary if self.canary and draw < self.share else self.stable


def stable_releases(models: Mapping[str, ModelEntry]) -> dict[str, str]:
    """The release that has taken a model's place, by the model's name."""
    return {name: found.stable for name, found in releases_of(models).items() if found.stable != name}


def releases_of(models: Mapping[str, ModelEntry]) -> dict[str, Released]:
    """By the name of each model that has some which get requests."""
    found: dict[str, Released] = {}
    for name, entry in models.items():
        release = entry.release
        if release is None or release.stage in UNUSED:
            continue
        known = found.get(release.of, Released(release.of))
        if release.stage == "stable":
            found[release.of] = Released(name, known.canary, known.share)
        else:
            found[release.of] = Released(known.stable, name, release.share)
    return found
