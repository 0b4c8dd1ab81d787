"""The verifier: the probability that one answer serves two questions."""

from cache.verify.verifier import Verifier

__all__ = ["Verifier"]
