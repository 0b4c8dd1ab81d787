"""Telemetry's errors.

TelemetryError            a setting of telemetry cannot be used (at start only: no request ever sees one)
"""

from __future__ import annotations


class TelemetryError(Exception):
    """A telemetry setting that cannot be used; the message names it and the remedy."""
