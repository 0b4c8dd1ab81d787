"""What a client asks of the cache: `x-penstock-cache`, or else HTTP's `cache-control`. It only tightens."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import InvalidRequest

HEADER = "x-penstock-cache"
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


DEFAULT = CacheDirectives()


def read_directives(own_header: str, cache_control: str) -> CacheDirectives:
    """The directives of a request's headers; "" where a header is missing.

    Unknown words of `x-penstock-cache` raise InvalidRequest; in `cache-control` they are ignored, as in HTTP.
    """
    text = own_header or cache_control
    if not text:
        return DEFAULT
    found: set[str] = set()
    max_age_s: float | None = None
    for word in (part.strip().lower() for part in text.split(",")):
        name, _, value = word.partition("=")
        if name == "max-age" and value.isascii() and value.isdigit():
            max_age_s = float(value[:12])
        elif word in _NAMES:
            found.add(_NAMES[word])
        elif own_header and word:
            raise InvalidRequest(
                f"The header {HEADER!r} has an unknown directive: use no-cache, refresh, no-store, only or "
                "max-age=SECONDS.",
                param=HEADER,
            )
    # As HTTP says, `no-store` keeps a request out of the cache in both directions.
    may_write = "no-store" not in found
    may_read = may_write and "no-cache" not in found
    return CacheDirectives(may_read, may_write and "only" not in found, "only" in found, max_age_s)
