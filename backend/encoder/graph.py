"""BERT as an ONNX graph: ids [B, S], positions [S], lengths [B] → last hidden states [B, S, D].

The query, key and value projections are one matrix product. Rows after a sequence's length hold garbage.
Bound: at S = 9, reading 42 MB of weights; at S = 122, 2.6 GFLOP.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from backend.encoder.checkpoint import EncoderShape
from backend.encoder.onnx_writer import GraphWriter, Value
from backend.errors import CheckpointError

Array = NDArray[np.float32]


class BertGraph:
    """Builds the graph from the tensors of model.safetensors."""

    def __init__(self, shape: EncoderShape, tensors: Mapping[str, Array]) -> None:
        self._shape = shape
        self._tensors = {name.removeprefix("bert."): array for name, array in tensors.items()}
        self._graph = GraphWriter()

    def build(self) -> bytes:
        """Return the ONNX model. Raises CheckpointError if a tensor is missing or has the wrong shape."""
        hidden = self._embed()
        for layer in range(self._shape.num_layers):
            hidden = self._layer(hidden, f"encoder.layer.{layer}.")
        inputs = [("ids", "int64", ("B", "S")), ("positions", "int64", ("S",)), ("lengths", "int32", ("B",))]
        return self._graph.finish(inputs, hidden, ("B", "S", self._shape.hidden_size))

    def _embed(self) -> Value:
        graph, prefix = self._graph, "embeddings."
        size, vocab_size = self._shape.hidden_size, self._shape.vocab_size
        words = self._tensor(prefix + "word_embeddings.weight", vocab_size, size)
        # Every token has type 0, so that row is folded into the position embeddings.
        positions = self._tensor(prefix + "position_embeddings.weight", None, size)
        types = self._tensor(prefix + "token_type_embeddings.weight", None, size)
        word = graph.op("Gather", graph.weight(words), "ids")
        position = graph.op("Gather", graph.weight(positions + types[0]), "positions")
        return self._norm(graph.op("Add", word, position), prefix + "LayerNorm")

    def _layer(self, hidden: Value, prefix: str) -> Value:
        graph, size = self._graph, self._shape.hidden_size
        own = prefix + "attention.self."
        names = ("query", "key", "value")
        weight = np.concatenate([self._tensor(f"{own}{name}.weight", size, size) for name in names])
        bias = np.concatenate([self._tensor(f"{own}{name}.bias", size) for name in names])
        attended = graph.op(
            "Attention",
            hidden,
            graph.weight(weight.T),
            graph.weight(bias),
            "lengths",
            domain="com.microsoft",
            num_heads=self._shape.num_heads,
        )
        projected = self._linear(attended, prefix + "attention.output.dense")
        hidden = self._norm(graph.op("Add", hidden, projected), prefix + "attention.output.LayerNorm")
        inner = self._tensor(prefix + "intermediate.dense.weight", None, size)
        inner_bias = self._tensor(prefix + "intermediate.dense.bias", inner.shape[0])
        product = graph.op("MatMul", hidden, graph.weight(inner.T))
        active = graph.op("BiasGelu", product, graph.weight(inner_bias), domain="com.microsoft")
        output = self._linear(active, prefix + "output.dense")
        return self._norm(graph.op("Add", hidden, output), prefix + "output.LayerNorm")

    def _linear(self, value: Value, name: str) -> Value:
        weight = self._tensor(name + ".weight", self._shape.hidden_size, None)
        bias = self._tensor(name + ".bias", self._shape.hidden_size)
        product = self._graph.op("MatMul", value, self._graph.weight(weight.T))
        return self._graph.op("Add", product, self._graph.weight(bias))

    def _norm(self, value: Value, name: str) -> Value:
        gain = self._graph.weight(self._tensor(name + ".weight", self._shape.hidden_size))
        bias = self._graph.weight(self._tensor(name + ".bias", self._shape.hidden_size))
        eps = self._shape.layer_norm_eps
        return self._graph.op("LayerNormalization", value, gain, bias, axis=2, epsilon=eps)

    def _tensor(self, name: str, *dims: int | None) -> Array:
        """Return a tensor as float32 after checking its dimensions (None: any size)."""
        array = self._tensors.get(name)
        folder = str(self._shape.folder)
        if array is None:
            raise CheckpointError(f"The weights in {folder!r} have no {name!r}: fetch the encoder again.")
        expected = tuple(n if d is None else d for d, n in zip(dims, array.shape, strict=False))
        if array.ndim != len(dims) or array.shape != expected:
            raise CheckpointError(f"{name!r} in {folder!r} has shape {array.shape}: config.json disagrees.")
        return array.astype(np.float32, copy=False)
