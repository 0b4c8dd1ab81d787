"""Llama 2 and 3.x: the plain decoder; the other families are described by how they differ from it."""

from __future__ import annotations

from backend.models.names import WeightNames

NAMES = WeightNames()
