"""What can be read from a request's text without any model."""

from router.signals.surface import NAMES, Surface, read_surface

__all__ = ["NAMES", "Surface", "read_surface"]
