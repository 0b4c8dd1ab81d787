"""The language of a text, by character n-grams. An encoder of other languages cannot judge it."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

LANGUAGES = (
    "ar", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr",
    "hu", "id", "it", "ja", "ko", "lt", "lv", "ms", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr",
    "sv", "sw", "ta", "th", "tr", "uk", "ur", "vi", "zh",
)  # fmt: skip
"""Rarer ones would be found in short texts of these."""

MIN_PROBABILITY = 0.5
MAX_CHARS = 2_000
MEMORY = 1_024
"""Texts whose language is remembered: several stages ask about one text."""


@cache
def identifier() -> LanguageIdentifier:
    """Loads the model, which takes a second and 60 MB."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    found = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    found.set_languages(LANGUAGES)
    return found


@lru_cache(maxsize=MEMORY)
def language_of(text: str) -> str:
    """The language as an ISO 639-1 code; "" when the text is too short to tell."""
    language, probability = identifier().classify(text[:MAX_CHARS])
    return str(language) if probability >= MIN_PROBABILITY else ""
