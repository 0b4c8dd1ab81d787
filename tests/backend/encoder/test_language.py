"""The language of a text; none where it is too short to tell."""

from __future__ import annotations

import pytest

from backend.encoder.language import language_of


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("How do I reset my password?", "en"),
        ("Wie setze ich mein Passwort zurück?", "de"),
        ("Quelle est la capitale de l'Italie ?", "fr"),
        ("Como faço para cancelar minha conta?", "pt"),
        ("Женщина идёт домой", "ru"),
        ("今日は天気がいい", "ja"),
        ("ok", ""),
        ("12 + 4", ""),
        ("", ""),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert language_of(text) == language
