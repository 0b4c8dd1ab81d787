"""Removes the gateway's secrets from what an upstream says, in the encodings in which it may repeat them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from policies.redaction import base64_forms

REDACTED = "***"
MAX_TEXT_CHARACTERS = 256 * 1024
"""Longer texts are not searched, which would take seconds, but replaced as a whole."""


class Redactor:
    """Knows an upstream's secrets: its API key, the credentials of its proxy."""

    def __init__(self, *secrets: str) -> None:
        """Empty secrets are ignored."""
        patterns = [pattern for secret in secrets if secret for pattern in _patterns(secret)]
        self._pattern = re.compile("|".join(patterns)) if patterns else None
        self._min_characters = min((len(secret) for secret in secrets if secret), default=0)

    @classmethod
    def of(cls, api_key: str | None, proxy: str) -> Redactor:
        """A redactor of an upstream's API key and the credentials in its proxy's URL."""
        login = urlsplit(proxy)
        credentials = f"{login.username}:{login.password}" if login.password else ""
        return cls(api_key or "", login.password or "", credentials)

    def clean(self, text: str, max_characters: int) -> str:
        """`text` without the secrets, and only then cut: a cut secret would no longer be recognised."""
        if len(text) > MAX_TEXT_CHARACTERS:
            return REDACTED[:max_characters]
        if self._pattern is not None and len(text) >= self._min_characters:  # no form is shorter
            text = self._pattern.sub(REDACTED, text)
        return text[:max_characters]


def _patterns(secret: str) -> Iterator[str]:
    """Base64, and any mix of the escapes of JSON and URLs."""
    yield from (re.escape(text) for text in base64_forms(secret.encode()))
    yield "".join(map(_any_escape, secret))


def _any_escape(character: str) -> str:
    code = "".join(f"%{byte:02x}" for byte in character.encode())
    # A bounded number of backslashes: else a long run of them would take quadratic time.
    plain, unicode = re.escape(character), f"{ord(character):04x}"
    return rf"(?:\\{{0,8}}{plain}|(?i:{code})|\\{{1,8}}u(?i:{unicode}))"
