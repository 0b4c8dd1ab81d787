"""What can be read from a request's text: surface features, language, domain."""

from router.signals.domain import domain_of
from router.signals.language import language_of
from router.signals.surface import NAMES, Surface, read_surface

__all__ = ["NAMES", "Surface", "domain_of", "language_of", "read_surface"]
