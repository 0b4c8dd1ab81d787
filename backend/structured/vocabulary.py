"""A checkpoint's vocabulary in the form that llguidance needs: token bytes, special tokens, EOS tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from llguidance import LLTokenizer, TokenizerWrapper

from backend.errors import CheckpointError, RequestError
from backend.tokenizer import Tokenizer


class Vocabulary:
    """Token ids and their bytes, padded to the model's size; ids without a token are never allowed."""

    bos_token_id: int | None = None  # part of llguidance's tokenizer protocol

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Iterable[int],
        eos_token_ids: Iterable[int],
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        """`encode` is the tokenizer's encoder; without it, text is split into the longest tokens greedily."""
        self.tokens = list(tokens)
        self.special_token_ids = sorted(special_ids)
        # A model without EOS uses a token without text to mark the output as complete.
        textless = [*self.special_token_ids, *(i for i, token in enumerate(tokens) if not token)]
        ends = sorted(eos_token_ids) or textless[:1]
        if not ends:
            raise CheckpointError("the tokenizer has no special token that could end a structured output")
        self.eos_token_id = ends[0]
        special = set(self.special_token_ids)
        self._ids = {token: i for i, token in enumerate(self.tokens) if token and i not in special}
        self._longest = max(map(len, self._ids), default=1)
        self._encode = encode
        self.ll_tokenizer = LLTokenizer(TokenizerWrapper(self), eos_token=ends)

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, size: int, eos_token_ids: Iterable[int]) -> Vocabulary:
        """Build from a tokenizer and the model's vocabulary size and EOS tokens."""
        tokens = [tokenizer.token_bytes(i) for i in range(min(tokenizer.vocab_size, size))]
        tokens += [b""] * (size - len(tokens))
        special = [i for i in tokenizer.special_ids if i < size]
        return cls(tokens, special, [i for i in eos_token_ids if i < size], tokenizer.encode)

    @classmethod
    def from_checkpoint(cls, folder: Path, size: int, eos_token_ids: Iterable[int]) -> Vocabulary:
        """Build from a checkpoint's folder. Raises CheckpointError if it has no tokenizer."""
        return cls.from_tokenizer(Tokenizer.from_checkpoint(folder), size, eos_token_ids)

    @property
    def num_mask_words(self) -> int:
        """Number of int32 words in a mask."""
        return -(-len(self.tokens) // 32)

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token with this text, if any."""
        data = text.encode()
        return next((i for i in self.special_token_ids if self.tokens[i] == data), None)

    def __call__(self, data: bytes) -> list[int]:
        """Return tokens whose bytes are exactly `data`: by the tokenizer if it can, else greedily."""
        if self._encode is not None:
            try:
                found = self._encode(data.decode())
            except (UnicodeDecodeError, RequestError):
                found = []
            # Some tokenizers prepend a space or parse special tokens.
            special = self.special_token_ids
            if b"".join(self.tokens[i] for i in found) == data and not any(i in special for i in found):
                return found
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(data):
            for end in range(min(len(data), start + self._longest), start, -1):
                token_id = self._ids.get(data[start:end])
                if token_id is not None:
                    found.append(token_id)
                    break
            else:
                return found  # no token begins with this byte
            start = end
        return found
