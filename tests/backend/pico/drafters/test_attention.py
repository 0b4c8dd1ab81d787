"""Attention equals that of transformers; diagonals equal keys selected by a mask."""

from __future__ import annotations

import torch

from backend.pico.drafters.attention import attend, rotation
from backend.pico.drafters.mixture_of_attentions import run_target_layer
from backend.pico.drafters.target import Target, View


def test_a_layer_of_the_target_gives_the_targets_own_stream(target: Target, view: View) -> None:
    length = view.ids.shape[1]
    rotate = rotation(length, target.shape.head_dim, target.shape.rope_theta, view.ids.device)
    causal = torch.ones(length, length).tril().bool()
    layer, stream = target.decoder_layers[-1], view.layers[-2]
    for verified in (torch.zeros_like(causal), causal.tril(-1), causal.tril(-3)):
        mask = torch.cat((verified, causal & ~verified), dim=-1)
        found = run_target_layer(layer, stream, stream, rotate, mask)
        torch.testing.assert_close(found, view.layers[-1], atol=1e-4, rtol=1e-4)


def test_diagonals_are_keys_at_the_querys_own_position() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, 5, 8, generator=generator)
    k, v, own_k, own_v = torch.randn(4, 2, 2, 5, 8, generator=generator)
    causal = torch.ones(5, 5).tril().bool()
    found = attend(q, k, v, causal.tril(-1), [(own_k, own_v)])
    mask = torch.cat((causal.tril(-1), torch.eye(5).bool()), dim=1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, torch.cat((k, own_k), 2), torch.cat((v, own_v), 2), attn_mask=mask, enable_gqa=True
    )
    torch.testing.assert_close(found, expected.transpose(1, 2).flatten(2))
