"""Errors of the cache."""

from __future__ import annotations


class CacheError(Exception):
    """Base of all errors of this package."""


class StoreUnavailable(CacheError):
    """The store that replicas share does not answer."""
