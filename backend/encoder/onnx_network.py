"""BERT on ONNX Runtime, without torch.

Why ONNX Runtime (one thread, AVX2, fp32, ms for 9 / 122 tokens): torch 9.0 / 39, ONNX Runtime 4.9 / 37.
Dynamic int8 takes 2.3 / 23, but with cosine 0.992 and results that depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from backend.cpu_quota import cpu_quota
from backend.encoder.checkpoint import Checkpoint
from backend.encoder.graph import BertGraph
from backend.encoder.network import unit
from backend.encoder.shape import shape_of
from backend.errors import CheckpointError

onnxruntime.disable_telemetry_events()  # its wheel reports to its maker by default


class OnnxNetwork:
    """The graph of graph.py, with its pooling."""

    def __init__(self, checkpoint: Checkpoint, num_threads: int | None, *, is_int8: bool) -> None:
        """`is_int8`: quantise its products. Raises CheckpointError."""
        shape = shape_of(checkpoint)
        self.tokenizer = _load_tokenizer(shape.folder / "tokenizer.json")
        (path,) = checkpoint.modules.weights
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError, TypeError) as error:
            raise CheckpointError(f"{str(path)!r} is missing or broken ({error}): fetch it again.") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads or cpu_quota() or 0  # 0: one per core
        options.log_severity_level = 3
        # Threads that spin between requests would take a core from the engine.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = BertGraph(shape, tensors, is_int8=is_int8).build()
        self._session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        self._takes_first = checkpoint.modules.pooling == ("cls",)
        self._is_normalized = checkpoint.modules.is_normalized
        self.dimensions = shape.hidden_size
        self.vocab_size = shape.vocab_size
        self.max_tokens = checkpoint.max_tokens

    def embed(self, batch: Sequence[list[int]]) -> NDArray[np.float32]:
        """Vectors [B, D] of tokenized inputs."""
        lengths = np.array([len(ids) for ids in batch], dtype=np.int32)
        padded = np.zeros((len(batch), int(lengths.max())), dtype=np.int64)
        for row, ids in enumerate(batch):
            padded[row, : len(ids)] = ids
        positions = np.arange(padded.shape[1], dtype=np.int64)
        (hidden,) = self._session.run(None, {"ids": padded, "positions": positions, "lengths": lengths})
        pooled = hidden[:, 0] if self._takes_first else _mean(hidden, positions < lengths[:, None])
        return unit(pooled) if self._is_normalized else pooled.astype(np.float32)


def _mean(hidden: NDArray[np.float32], kept: NDArray[np.bool_]) -> NDArray[np.float32]:
    """[B, S, D] → [B, D], over the tokens that are kept [B, S]."""
    sums = np.where(kept[:, :, None], hidden, 0).sum(axis=1, dtype=np.float32)
    means: NDArray[np.float32] = sums / kept.sum(axis=1, dtype=np.float32)[:, None]
    return means


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{str(path)!r} is missing or broken ({error}): fetch it again.") from error
    tokenizer.no_truncation()  # tokenizer.json may set a limit that truncates silently
    tokenizer.no_padding()
    if len(tokenizer.encode("").ids) != 2:
        raise CheckpointError(f"{str(path)!r} puts no [CLS] and [SEP] around a text: not a BERT tokenizer.")
    return tokenizer
