"""Mixtral: Mistral with a mixture of experts in every layer; w1 is the gate, w3 up, w2 down."""

from __future__ import annotations

from backend.models.names import ExpertNames, WeightNames

NAMES = WeightNames(
    experts=ExpertNames(
        router="block_sparse_moe.gate.weight",
        gate="block_sparse_moe.experts.{expert}.w1.weight",
        up="block_sparse_moe.experts.{expert}.w3.weight",
        down="block_sparse_moe.experts.{expert}.w2.weight",
    )
)
