"""What the policies say about one model's cache, with every default filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.cache import DEFAULTS, CacheMode, CacheRules, CacheScope, Storable


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """One model's rules. Descriptions are in `policies.cache.CacheRules`."""

    mode: CacheMode
    scope: CacheScope
    max_error_rate: float
    ttl_s: float
    max_temperature: float
    store: Sequence[Storable]
    verified_share: float
    drafts: bool

    @classmethod
    def of(cls, *rules: CacheRules | None) -> CacheSettings:
        """The first of `rules` that sets a value decides; `DEFAULTS` come last."""
        given = [each for each in rules if each is not None]
        values = {
            name: next(found for each in (*given, DEFAULTS) if (found := getattr(each, name)) is not None)
            for name in cls.__slots__
        }
        return cls(**values)

    def with_rules(self, rules: CacheRules) -> CacheSettings:
        """These settings with what `rules` sets."""
        given = {name: found for name in self.__slots__ if (found := getattr(rules, name)) is not None}
        return replace(self, **given)
