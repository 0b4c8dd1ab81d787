"""Text to token ids and back, and chats to prompts, for any checkpoint in Hugging Face format.

Plain Python over the `tokenizers` library; no torch and no transformers, so the gateway may import it.
"""

from __future__ import annotations

from backend.tokenizer.detokenizer import Detokenizer
from backend.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer"]
