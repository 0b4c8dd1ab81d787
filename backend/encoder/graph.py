"""BERT as an ONNX graph: ids [B, S], positions [S], lengths [B] → last hidden states [B, S, D].

The query, key and value projections are one matrix product. Rows after a sequence's length hold garbage.
Bound: at S = 9, reading 42 MB of weights (11 MB in int8); at S = 122, 2.6 GFLOP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from backend.encoder.shape import EncoderShape
from backend.errors import CheckpointError

Array = NDArray[np.float32]
Value = str
"""Name of a tensor in the graph."""

IR_VERSION = 8
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
"""LayerNormalization needs 17; MultiHeadAttention, BiasGelu and MatMulNBits are ONNX Runtime's own."""

INT8_BLOCK = 32
"""Inputs that share a scale, in weights and in activations. The scales of an activation are its row's own, so
a text has the same vector in every batch. Blocks of 128 are faster, but compute small batches otherwise."""
INT8_ACCURACY = 4
"""MatMulNBits' `accuracy_level`: activations in int8 too."""


class BertGraph:
    """Builds the graph from the tensors of model.safetensors."""

    def __init__(self, shape: EncoderShape, tensors: Mapping[str, Array], *, is_int8: bool = False) -> None:
        """`is_int8`: matrix products in int8, with scales per row and block."""
        self._shape = shape
        self._is_int8 = is_int8
        self._tensors = {name.removeprefix("bert."): array for name, array in tensors.items()}
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def build(self) -> bytes:
        """Return the ONNX model. Raises CheckpointError if a tensor is missing or has the wrong shape."""
        hidden = self._embed()
        for layer in range(self._shape.num_layers):
            hidden = self._layer(hidden, f"encoder.layer.{layer}.")
        inputs = [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "S"]),
            helper.make_tensor_value_info("positions", TensorProto.INT64, ["S"]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["B"]),
        ]
        shape: list[str | int | None] = ["B", "S", self._shape.hidden_size]
        outputs = [helper.make_tensor_value_info(hidden, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self._nodes, "bert", inputs, outputs, self._weights)
        model: bytes = helper.make_model(
            graph, ir_version=IR_VERSION, opset_imports=OPSETS
        ).SerializeToString()
        return model

    def _op(self, kind: str, *inputs: Value, domain: str = "", **attributes: float) -> Value:
        """Add a node with one output; its name."""
        return self._ops(kind, *inputs, num_outputs=1, domain=domain, **attributes)[0]

    def _ops(
        self, kind: str, *inputs: Value, num_outputs: int, domain: str = "", **attributes: float
    ) -> list[Value]:
        """Add a node; the names of its outputs."""
        outputs = [f"v{len(self._nodes)}.{i}" for i in range(num_outputs)]
        node = helper.make_node(kind, inputs, outputs, domain=domain)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self._nodes.append(node)
        return outputs

    def _product(self, value: Value, weight: Array) -> Value:
        """`value` times the transpose of `weight` [outputs, inputs]."""
        if not self._is_int8:
            return self._op("MatMul", value, self._weight(weight.T))
        num_outputs, num_inputs = weight.shape
        if num_inputs % INT8_BLOCK:
            raise CheckpointError(
                f"The encoder in {str(self._shape.folder)!r} has a layer of {num_inputs} inputs, no multiple "
                f"of {INT8_BLOCK}, as int8 needs: leave `dtype` out."
            )
        blocks = weight.reshape(num_outputs, -1, INT8_BLOCK)
        scales = np.maximum(np.abs(blocks).max(axis=2) / 127, np.finfo(np.float32).tiny).astype(np.float32)
        levels = np.round(blocks / scales[:, :, None]) + 128  # 128 is MatMulNBits' zero
        return self._op(
            "MatMulNBits",
            value,
            self._weight(levels.astype(np.uint8)),
            self._weight(scales),
            domain="com.microsoft",
            N=num_outputs,
            K=num_inputs,
            bits=8,
            block_size=INT8_BLOCK,
            accuracy_level=INT8_ACCURACY,
        )

    def _weight(self, array: NDArray[Any]) -> Value:
        """Add a constant tensor; its name."""
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _embed(self) -> Value:
        prefix = "embeddings."
        size, vocab_size = self._shape.hidden_size, self._shape.vocab_size
        words = self._tensor(prefix + "word_embeddings.weight", vocab_size, size)
        # Every token has type 0, so that row is folded into the position embeddings.
        positions = self._tensor(prefix + "position_embeddings.weight", None, size)
        types = self._tensor(prefix + "token_type_embeddings.weight", None, size)
        word = self._op("Gather", self._weight(words), "ids")
        position = self._op("Gather", self._weight(positions + types[0]), "positions")
        return self._norm(self._op("Add", word, position), prefix + "LayerNorm")

    def _layer(self, hidden: Value, prefix: str) -> Value:
        size = self._shape.hidden_size
        own = prefix + "attention.self."
        names = ("query", "key", "value")
        weight = np.concatenate([self._tensor(f"{own}{name}.weight", size, size) for name in names])
        bias = np.concatenate([self._tensor(f"{own}{name}.bias", size) for name in names])
        attended = self._op(
            "MultiHeadAttention",
            *self._ops("Split", self._product(hidden, weight), num_outputs=3, axis=2),
            self._weight(bias),
            "lengths",
            domain="com.microsoft",
            num_heads=self._shape.num_heads,
        )
        projected = self._linear(attended, prefix + "attention.output.dense")
        hidden = self._norm(self._op("Add", hidden, projected), prefix + "attention.output.LayerNorm")
        inner = self._tensor(prefix + "intermediate.dense.weight", None, size)
        inner_bias = self._tensor(prefix + "intermediate.dense.bias", inner.shape[0])
        product = self._product(hidden, inner)
        active = self._op("BiasGelu", product, self._weight(inner_bias), domain="com.microsoft")
        output = self._linear(active, prefix + "output.dense")
        return self._norm(self._op("Add", hidden, output), prefix + "output.LayerNorm")

    def _linear(self, value: Value, name: str) -> Value:
        weight = self._tensor(name + ".weight", self._shape.hidden_size, None)
        bias = self._tensor(name + ".bias", self._shape.hidden_size)
        return self._op("Add", self._product(value, weight), self._weight(bias))

    def _norm(self, value: Value, name: str) -> Value:
        gain = self._weight(self._tensor(name + ".weight", self._shape.hidden_size))
        bias = self._weight(self._tensor(name + ".bias", self._shape.hidden_size))
        eps = self._shape.layer_norm_eps
        return self._op("LayerNormalization", value, gain, bias, axis=2, epsilon=eps)

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
