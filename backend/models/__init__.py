"""Decoder models: `families/` describes each family, `decoder.py` computes all of them."""

from backend.models.loaded import LoadedModel, load_model

__all__ = ["LoadedModel", "load_model"]
