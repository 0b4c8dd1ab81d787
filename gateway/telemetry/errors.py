"""Telemetry's errors.

TelemetryError            a telemetry setting cannot be used (at start only)
"""

from __future__ import annotations


class TelemetryError(Exception):
    """A telemetry setting that cannot be used; the message names it and the remedy."""
