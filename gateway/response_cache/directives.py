"""What a client asks of the cache. It only tightens what the policy says.

In the header `x-penstock-cache`, or else HTTP's `cache-control`; also in the request's `metadata`, for
callers that cannot set headers. Where both are given, the stricter one counts in each respect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import InvalidRequest

HEADER = "x-penstock-cache"
METADATA = "penstock-cache"
_NAMES = {
    "no-cache": "no-cache",
    "refresh": "no-cache",
    "no-store": "no-store",
    "only": "only",
    "only-if-cached": "only",
}


@dataclass(frozen=True, slots=True)
class CacheDirectives:
    """Whether a request may be answered from the cache, and whether its answer may be stored."""

    may_read: bool = True
    may_write: bool = True
    is_only_cached: bool = False  # refuse rather than call the model
    max_age_s: float | None = None

    def tightened_by(self, other: CacheDirectives) -> CacheDirectives:
        """The stricter of both in each respect."""
        ages_s = [each for each in (self.max_age_s, other.max_age_s) if each is not None]
        return CacheDirectives(
            self.may_read and other.may_read,
            self.may_write and other.may_write,
            self.is_only_cached or other.is_only_cached,
            min(ages_s, default=None),
        )


DEFAULT = CacheDirectives()


def read_directives(
    own_header: str, cache_control: str, metadata: Mapping[str, str] | None = None
) -> CacheDirectives:
    """The directives of a request; "" where a header is missing.

    Unknown words raise InvalidRequest, except in `cache-control`, where HTTP says to ignore them.
    """
    given = metadata.get(METADATA, "") if metadata else ""
    if not (own_header or cache_control or given):
        return DEFAULT
    if own_header:
        found = _parsed(own_header, HEADER, f"The header {HEADER!r}")
    else:
        found = _parsed(cache_control, "", "")
    return found.tightened_by(_parsed(given, f"metadata.{METADATA}", f"'metadata.{METADATA}'"))


def _parsed(text: str, param: str, subject: str) -> CacheDirectives:
    """`param` "": unknown words are ignored."""
    found: set[str] = set()
    max_age_s: float | None = None
    for word in (part.strip().lower() for part in text.split(",")):
        name, _, value = word.partition("=")
        if name == "max-age" and value.isascii() and value.isdigit():
            max_age_s = float(value[:12])
        elif word in _NAMES:
            found.add(_NAMES[word])
        elif param and word:
            raise InvalidRequest(
                f"{subject} has an unknown directive: use no-cache, refresh, no-store, only or "
                "max-age=SECONDS.",
                param=param,
            )
    # As HTTP says, `no-store` keeps a request out of the cache in both directions.
    may_write = "no-store" not in found
    may_read = may_write and "no-cache" not in found
    return CacheDirectives(may_read, may_write and "only" not in found, "only" in found, max_age_s)
