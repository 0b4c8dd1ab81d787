"""Errors of the cache."""

from __future__ import annotations


class CacheError(Exception):
    """Base of all errors of this package."""


class WeightsError(CacheError):
    """Shipped weights are missing, broken or not those that were trained."""


class StoreUnavailable(CacheError):
    """The store that replicas share does not answer."""
