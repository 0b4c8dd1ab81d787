"""Gemma: the scalars, and the activation under both of its keys."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import read


def test_scalars(tmp_path: Path) -> None:
    scalars = read(tmp_path, "GemmaForCausalLM", hidden_size=64).scalars
    assert (scalars.embedding, scalars.norm_offset, scalars.softcap) == (8.0, 1.0, None)
    assert scalars.rounds_embedding and scalars.exact_norms


def test_activation(tmp_path: Path) -> None:
    for key in ("hidden_act", "hidden_activation"):
        (layer,) = set(read(tmp_path, "GemmaForCausalLM", **{key: "gelu_pytorch_tanh"}).layers)
        assert layer.feed_forward.activation == "gelu_tanh"
