"""SentenceEncoder: validated inputs → unit vectors, as in sentence-transformers.

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

from backend.digests import check_digests
from backend.encoder.checkpoint import BUILTIN, EncoderShape, packaged_digests, read_shape, resolve
from backend.encoder.graph import BertGraph
from backend.errors import CheckpointError, RequestError

onnxruntime.disable_telemetry_events()  # its wheel reports to its maker by default

MAX_INPUTS = 2048  # per request, as in OpenAI's API
MAX_REQUEST_TOKENS = 300_000  # per request, as in OpenAI's API
MAX_REQUEST_CHARS = 8_000_000  # checked before tokenization
MAX_INPUT_CHARS = 32_768  # checked before tokenization, which takes a hundred times the memory of the text


class SentenceEncoder:
    """Embeds texts as the mean of the last hidden states, scaled to length 1.

    `tokenize` may run in several threads at once, `embed` in one.
    """

    def __init__(
        self, shape: EncoderShape, tokenizer: Tokenizer, session: onnxruntime.InferenceSession
    ) -> None:
        self.max_tokens = shape.max_tokens
        self.dimensions = shape.hidden_size
        self._vocab_size = shape.vocab_size
        self._tokenizer = tokenizer
        self._session = session
        self._special_ids = tokenizer.encode("").ids  # [CLS] [SEP]

    @classmethod
    def from_checkpoint(
        cls, checkpoint: str, num_threads: int | None = None, *, is_int8: bool = False
    ) -> SentenceEncoder:
        """Load a folder or a `builtin:` name; `is_int8`: quantise its products. Raises CheckpointError."""
        shape = read_shape(resolve(checkpoint))
        if checkpoint == BUILTIN:
            check_digests(packaged_digests())
        tokenizer = _load_tokenizer(shape.folder / "tokenizer.json")
        try:
            tensors = load_file(shape.folder / "model.safetensors")
        except (OSError, SafetensorError) as error:
            path = str(shape.folder / "model.safetensors")
            raise CheckpointError(f"{path!r} is missing or broken ({error}): fetch it again.") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads or 0  # 0: one per core
        options.log_severity_level = 3
        # Threads that spin between requests would take a core from the engine.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = BertGraph(shape, tensors, is_int8=is_int8).build()
        return cls(shape, tokenizer, onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]))

    def tokenize(self, inputs: Sequence[str | list[int]]) -> list[list[int]]:
        """Return the token ids of each input, special tokens included.

        Raises RequestError, with the limit and the actual count, for inputs that cannot be embedded in full.
        """
        if not inputs:
            raise RequestError("`input` is empty: give at least one text.", param="input")
        if len(inputs) > MAX_INPUTS:
            raise RequestError(f"`input` has {len(inputs)} items; the limit is {MAX_INPUTS}.", param="input")
        if sum(map(len, inputs)) > MAX_REQUEST_CHARS:
            raise RequestError(f"`input` has over {MAX_REQUEST_CHARS} characters: send less.", param="input")
        ids = [self._tokenize_one(i, value) for i, value in enumerate(inputs)]
        total = sum(map(len, ids))
        if total > MAX_REQUEST_TOKENS:
            raise RequestError(
                f"`input` has {total} tokens; the limit is {MAX_REQUEST_TOKENS} per request.", param="input"
            )
        return ids

    def embed(self, batch: Sequence[list[int]]) -> NDArray[np.float32]:
        """Return vectors [B, D] of tokenized inputs, in one pass padded to the longest."""
        lengths = np.array([len(ids) for ids in batch], dtype=np.int32)
        padded = np.zeros((len(batch), int(lengths.max())), dtype=np.int64)
        for row, ids in enumerate(batch):
            padded[row, : len(ids)] = ids
        positions = np.arange(padded.shape[1], dtype=np.int64)
        (hidden,) = self._session.run(None, {"ids": padded, "positions": positions, "lengths": lengths})
        kept = positions < lengths[:, None]
        means = np.where(kept[:, :, None], hidden, 0).sum(axis=1, dtype=np.float32) / lengths[:, None]
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        vectors: NDArray[np.float32] = (means / np.maximum(norms, 1e-12)).astype(np.float32)
        return vectors

    def _tokenize_one(self, index: int, value: str | list[int]) -> list[int]:
        if not value:
            raise RequestError(f"`input[{index}]` is empty: give some text.", param="input")
        if isinstance(value, str):
            if len(value) > MAX_INPUT_CHARS:
                raise RequestError(
                    f"`input[{index}]` has {len(value)} characters; the model reads at most "
                    f"{self.max_tokens} tokens: split the text.",
                    param="input",
                )
            try:
                ids: list[int] = self._tokenizer.encode(value).ids
            except (UnicodeEncodeError, TypeError) as error:
                raise RequestError(f"`input[{index}]` is not valid Unicode.", param="input") from error
        else:
            ids = self._checked_ids(index, value)
        if len(ids) > self.max_tokens:
            raise RequestError(
                f"`input[{index}]` has {len(ids)} tokens; the model reads at most {self.max_tokens}: "
                "split the text.",
                param="input",
            )
        return ids

    def _checked_ids(self, index: int, ids: list[int]) -> list[int]:
        """Validate a client's token ids and add the special tokens around them if missing."""
        for token_id in ids:
            if not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    f"`input[{index}]` has token id {token_id}; ids are 0 to {self._vocab_size - 1}.",
                    param="input",
                )
        first, last = self._special_ids
        return ids if ids[0] == first and ids[-1] == last else [first, *ids, last]


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise CheckpointError(f"{str(path)!r} is missing or broken ({error}): fetch it again.") from error
    tokenizer.no_truncation()  # tokenizer.json may set a limit that truncates silently
    tokenizer.no_padding()
    if len(tokenizer.encode("").ids) != 2:
        raise CheckpointError(f"{str(path)!r} puts no [CLS] and [SEP] around a text: not a BERT tokenizer.")
    return tokenizer
