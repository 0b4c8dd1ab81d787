"""Decoder families: one small file each says where its weights lie; decoder.py computes them all."""

from backend.models.loaded import LoadedModel, load_model

__all__ = ["LoadedModel", "load_model"]
