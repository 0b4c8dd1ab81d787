"""SentenceEncoder: validated inputs → vectors, as in sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from backend.digests import check_digests
from backend.encoder.checkpoint import (
    BUILTIN,
    Reading,
    check_runtime,
    packaged_digests,
    read_checkpoint,
)
from backend.encoder.network import Network
from backend.encoder.onnx_network import OnnxNetwork
from backend.errors import CheckpointError, RequestError

MAX_INPUTS = 2048  # per request, as in OpenAI's API
MAX_REQUEST_TOKENS = 300_000  # per request, as in OpenAI's API
MAX_REQUEST_CHARS = 8_000_000  # checked before tokenization
MAX_INPUT_CHARS = 32_768  # checked before tokenization, which takes a hundred times the memory of the text
MAX_CHARS_PER_TOKEN = 16  # where that allows more


class SentenceEncoder:
    """Embeds texts as the library's `encode` does: scaled to length 1 where the checkpoint says so.

    `tokenize` may run in several threads at once, `embed` in one.
    """

    def __init__(self, network: Network, prompt: str = "") -> None:
        """`prompt`: put before each text."""
        self.max_tokens = network.max_tokens
        self.dimensions = network.dimensions
        self._max_chars = max(MAX_INPUT_CHARS, MAX_CHARS_PER_TOKEN * network.max_tokens)
        self._network = network
        self._prompt = prompt
        self._before, self._after = _special_ids(network.tokenizer)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: str,
        num_threads: int | None = None,
        *,
        is_int8: bool = False,
        reading: Reading | None = None,
    ) -> SentenceEncoder:
        """Load a folder or a `builtin:` name; `is_int8`: quantise its products. Raises CheckpointError."""
        found = read_checkpoint(checkpoint, reading)
        check_runtime(found, is_int8=is_int8)
        if checkpoint == BUILTIN:
            check_digests(packaged_digests())
        network: Network
        if found.runtime == "onnx":
            network = OnnxNetwork(found, num_threads, is_int8=is_int8)
        else:
            # By name: what only imports this module never loads torch.
            library: Any = import_module("backend.encoder.library_network")
            network = library.LibraryNetwork(found, num_threads)
        largest = max(network.tokenizer.get_vocab().values(), default=-1)
        if largest >= network.vocab_size:
            raise CheckpointError(
                f"The tokenizer in {str(found.folder)!r} has ids up to {largest}, but the weights have "
                f"{network.vocab_size} tokens: they belong to different models."
            )
        encoder = cls(network, found.prompt)
        if not np.isfinite(encoder.embed(encoder.tokenize(["warm up"]))).all():
            raise CheckpointError(f"The weights in {str(found.folder)!r} give no numbers: fetch them again.")
        return encoder

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
        return self._network.embed(batch)

    def _tokenize_one(self, index: int, value: str | list[int]) -> list[int]:
        if not value:
            raise RequestError(f"`input[{index}]` is empty: give some text.", param="input")
        ids = self._text_ids(index, value) if isinstance(value, str) else self._checked_ids(index, value)
        if len(ids) > self.max_tokens:
            raise RequestError(
                f"`input[{index}]` has {len(ids)} tokens; the model reads at most {self.max_tokens}: "
                "split the text.",
                param="input",
            )
        return ids

    def _text_ids(self, index: int, text: str) -> list[int]:
        if len(text) > self._max_chars:
            raise RequestError(
                f"`input[{index}]` has {len(text)} characters; the model reads at most "
                f"{self.max_tokens} tokens: split the text.",
                param="input",
            )
        try:
            ids: list[int] = self._network.tokenizer.encode(self._prompt + text).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(f"`input[{index}]` is not valid Unicode.", param="input") from error
        if not ids:
            raise RequestError(f"`input[{index}]` has no token: give some text.", param="input")
        return ids

    def _checked_ids(self, index: int, ids: list[int]) -> list[int]:
        """Validate a client's token ids and add the special tokens around them if missing."""
        if self._prompt:
            raise RequestError(
                f"`input[{index}]` is a list of token ids, but this model reads every text after the prompt "
                f"{self._prompt!r}: send text.",
                param="input",
            )
        size = self._network.vocab_size
        for token_id in ids:
            if not 0 <= token_id < size:
                raise RequestError(
                    f"`input[{index}]` has token id {token_id}; ids are 0 to {size - 1}.", param="input"
                )
        before, after = self._before, self._after
        ends = ids[: len(before)] == before and ids[len(ids) - len(after) :] == after
        return ids if ends and len(ids) >= len(before) + len(after) else [*before, *ids, *after]


def _special_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a").ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    return [], []
