from __future__ import annotations

from guardrails.text.decoders import atbash, backwards_words, decode, rot13


def test_places_of_payloads() -> None:
    text = "say aGVsbG8gdGhlcmUgZnJpZW5k or 68656c6c6f2074686572652066"
    assert [(name, text[start:end], decoded) for name, start, end, decoded in decode(text)] == [
        ("base64", "aGVsbG8gdGhlcmUgZnJpZW5k", "hello there friend"),
        ("hex", "68656c6c6f2074686572652066", "hello there f"),
    ]


def test_what_is_no_text_is_left() -> None:
    assert list(decode("deadbeefdeadbeefdeadbeef AAAAAAAAAAAAAAAAAAAAAAAA 12345678 12345678")) == []


def test_morse() -> None:
    assert [found[3] for found in decode(".... . .-.. .-.. --- / - .... . .-. .")] == ["hello there"]


def test_ciphers_undo_themselves() -> None:
    assert rot13(rot13("Hello")) == atbash(atbash("Hello")) == backwards_words(backwards_words("Hello"))
