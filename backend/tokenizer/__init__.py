"""Tokenization, detokenization and chat templates of checkpoints in Hugging Face format.

Plain Python over the `tokenizers` library, without torch and transformers, so that the gateway can import it.
"""

from __future__ import annotations

from backend.tokenizer.detokenizer import Detokenizer
from backend.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer"]
