"""Keys, tokens and passwords: known prefixes, and values that a name such as `client_secret` announces."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from math import log2
from string import ascii_lowercase, ascii_uppercase

from guardrails.checks.personal_data.span import Span

CONTEXT_CHARS = 48
"""How far before a value its name may begin."""

MIN_ENTROPY = 3.0
"""Bits per character of an announced key; words have less than 3, hexadecimal digits up to 4."""

TOKEN_CHARS = r"A-Za-z0-9_\u00c0-\u024f.+%@:/=~#&?!$*^\\-"
"""No key, address or name of an account holds other characters: a match never goes on behind one."""

_VALUE_CHARS = TOKEN_CHARS.replace(r"\\", "")
_URL_CHARS = r"A-Za-z0-9_.+%~#&?!$*^=-"

_PREFIXED = {
    "sk-": r"(?:ant-|proj-|or-|svcacct-|admin-|lf-)[\w-]{16,200}|(?=[\w-]{0,60}\d)[\w-]{20,200}",
    "AKIA": r"[0-9A-Z]{16}",
    "ASIA": r"[0-9A-Z]{16}",
    "github_pat_": r"\w{40,255}",
    "xapp-": r"\d-[\w-]{20,200}",
    "AIza": r"[\w-]{35}",
    "ya29.": r"[\w-]{20,250}",
    "GOCSPX-": r"[\w-]{28}",
    "sk_": r"(?:live|test)_[A-Za-z0-9]{10,247}",
    "rk_": r"(?:live|test)_[A-Za-z0-9]{10,247}",
    "whsec_": r"[A-Za-z0-9+/=]{24,64}",
    "pypi-AgE": r"[\w-]{50,250}",
    "SG.": r"[\w-]{16,32}\.[\w-]{16,64}",
    "dapi": r"[0-9a-f]{32}",
    "PMAK-": r"[0-9a-f-]{50,64}",
    "ATATT3": r"[\w=-]{50,250}",
    "AGE-SECRET-KEY-1": r"[0-9A-Z]{58}",
    **dict.fromkeys([f"gh{kind}_" for kind in "pousr"], r"[A-Za-z0-9]{36,255}"),
    **dict.fromkeys([f"xox{kind}-" for kind in "abeoprs"], r"[\w-]{10,200}"),
    **dict.fromkeys(("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glsa_", "glc_"), r"[\w-]{20,200}"),
    **dict.fromkeys(("hf_", "npm_", "gsk_", "r8_", "sbp_", "fw_", "ntn_", "lin_api_"), r"\w{20,200}"),
    **dict.fromkeys(("tvly-", "nvapi-", "pplx-", "xai-", "hvs.", "dop_v1_", "dckr_pat_"), r"[\w-]{20,200}"),
    **dict.fromkeys(("shpat_", "shpca_", "shppa_", "shpss_"), r"[0-9a-f]{32}"),
}
"""By prefix: Anthropic and OpenAI, AWS, GitHub, GitLab, Slack, Google, Stripe, PyPI, SendGrid, Databricks,
Postman, Atlassian, age; Hugging Face, npm, Groq, Replicate, Supabase, Fireworks, Notion, Linear; Tavily,
NVIDIA, Perplexity, xAI, Vault, DigitalOcean, Docker; Shopify."""

_LONG_TOKEN = re.compile(r"(?a)\w(?<![\w-].)(?=[\w.-]{19})|n(?<=\\.)(?=[\w.-]{20})")
_KNOWN = re.compile(
    r"(?a)n?(?:(?P<jwt>eyJ[\w-]{8,1000}\.eyJ[\w-]{8,4000}\.[\w-]{16,1000})|(?P<api_key>"
    + "|".join(re.escape(prefix) + f"(?:{rest})" for prefix, rest in _PREFIXED.items())
    + r"))(?![\w-])"
)

_KEY_SPACE = r"(?:\s|\\[nrt])*+"  # line ends are escaped in JSON
_KEY_PIECE = rf"(?:{_KEY_SPACE}(?:[A-Za-z0-9+/]{{16,200}}+={{0,2}}+|[A-Z][\w-]{{3,12}}: [^\n\\]{{1,80}}+))"
_KEY_HEAD = r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_LAST_PIECE = rf"{_KEY_SPACE}=?[A-Za-z0-9+/]{{1,15}}(?:={{1,2}}|={{0,2}}(?={_KEY_SPACE}-----END))"
_KEY = re.compile(
    rf"(?a){_KEY_HEAD}{_KEY_PIECE}{{1,256}}+(?:{_LAST_PIECE})?"
    rf"(?:{_KEY_SPACE}-----END [A-Z0-9 ]{{0,40}}-----)?"
)
_OPEN_KEY = re.compile(
    rf"(?a)-----BEGIN(?: [A-Z0-9 ]{{0,50}}-{{0,5}})?|{_KEY_HEAD}{_KEY_PIECE}{{0,256}}+(?:\s|\\[nrt])*+"
    r"(?:[A-Z][\w-]{0,12}(?::(?: [^\n\\]{0,80})?)?|=?[A-Za-z0-9+/]{0,200}={0,2})(?:\s|\\[nrt])*+"
    r"(?:\\|-{1,5}|-----EN?|-----END(?: [A-Z0-9 ]{0,40}-{0,5})?)?"
)

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_NAMES = {
    **dict.fromkeys(("password", "passwords", "passwd", "passphrase", "passcode", "pwd"), "password"),
    **dict.fromkeys(("secret", "token", "bearer", "key"), "api_key"),
}
_KEY_NAME = re.compile(r"(?:api|access|account|auth|private|signing|shared)[ _-]?\Z")
_ASSIGNED = re.compile(
    r"""(?a)[\\"'\]]{0,3}(?P<sign>\s{0,2}(?::=|=>|[:=])\s{0,2}|\s(?:is|was):?\s{1,2}|(?<=[Bb]earer)\s)"""
    rf"""(?:(?:Bearer|bearer|Basic)\s)?\\?(?P<quote>["'`]?)(?P<value>[{_VALUE_CHARS}]{{4,200}})(?P<rest>.?)"""
)
_IN_URL = re.compile(rf"(?a)[{_URL_CHARS}]{{0,64}}:(?P<value>[:{_URL_CHARS}]{{1,128}})(?=@)")
_PLACEHOLDER = re.compile(
    r"(?:[$%{<*.]|xxx).*|.*(?:passw|secret|token|example|your|changeme|placeholder|redacted|env[.\[]|config|null|none|true"
    r"|false|string|required|optional|undefined|argument|input|self\.|_?key$).*|pass|pwd",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"(?a)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def search_known(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first key with a known prefix, or JSON web token."""
    for token in _LONG_TOKEN.finditer(text, start):
        match = _KNOWN.match(text, token.start())
        kind = "jwt" if match is not None and match["jwt"] else "api_key"
        if match is not None and kind in kinds:
            return Span(*match.span(kind), kind)
    return None


def search_key_block(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first private key in PEM, also one whose end is missing or whose line ends are escaped."""
    match = _KEY.search(text, start) if "-----BEGIN" in text else None
    return None if match is None else Span(match.start(), match.end(), "private_key")


def open_key_block(text: str, start: int) -> int:
    """Where a private key begins that may go on behind the end of the text."""
    head = text.rfind("-----BEGIN", start)
    return head if head >= 0 and _OPEN_KEY.fullmatch(text, head) else len(text)


def search_named(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first value that a name announces as a password or a key."""
    context = max(0, start - CONTEXT_CHARS)
    lowered = text[context:].translate(_LOWER)
    found = [
        first
        for name, kind in _NAMES.items()
        if kind in kinds
        if (first := next(_named(text, start, kind, (context + end for end in _ends(lowered, name))), None))
    ]
    return min(found, default=None)


def _named(text: str, start: int, kind: str, ends: Iterable[int]) -> Iterator[Span]:
    """The values behind a name, which stands before each of `ends`."""
    for end in ends:
        match = _ASSIGNED.match(text, end)
        if match is not None and match.start("value") >= start and _is_secret(match, kind):
            value = match.start("value")
            yield Span(value, value + len(match["value"].rstrip(".:?")), kind)


def _ends(text: str, name: str) -> Iterator[int]:
    """Where a name ends in a text; a key needs a word before it that says what for."""
    place = text.find(name)
    while place >= 0:
        if name != "key" or _KEY_NAME.search(text, max(0, place - 8), place):
            yield place + len(name)
        place = text.find(name, place + 1)


def search_in_url(text: str, start: int, kinds: Collection[str]) -> Span | None:
    """The first user name with a password in a URL."""
    scheme = text.find("://", max(0, start - 3))
    while scheme >= 0:
        match = _IN_URL.match(text, scheme + 3)
        if match is not None and match.start() >= start and not _PLACEHOLDER.fullmatch(match["value"]):
            return Span(match.start(), match.end(), "password")
        scheme = text.find("://", scheme + 3)
    return None


def _is_secret(match: re.Match[str], kind: str) -> bool:
    """Whether a value is a literal that looks drawn or chosen, and not code or a placeholder."""
    value = match["value"]
    is_code = match["rest"] in ("(", "[", "{") or _IDENTIFIER.fullmatch(value) is not None
    if _PLACEHOLDER.fullmatch(value) or (is_code and not match["quote"]):
        return False
    has_letter, has_digit = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    if kind == "api_key":
        return len(value) >= 12 and has_letter and has_digit and entropy(value) >= MIN_ENTROPY
    is_assigned = match["quote"] != "" or match["sign"] == "="
    is_mixed = has_letter and (has_digit or (is_assigned and not value.isalpha()))
    return len(value) >= 6 and (is_mixed or is_assigned)


def entropy(text: str) -> float:
    """Shannon's, in bits per character."""
    counts = [text.count(char) for char in set(text)]
    return log2(len(text)) - sum(count * log2(count) for count in counts) / len(text)
