"""What can be read from a request's text: surface features, domain."""

from router.signals.domain import domain_of
from router.signals.surface import NAMES, Surface, read_surface

__all__ = ["NAMES", "Surface", "domain_of", "read_surface"]
