"""Keeps secrets out of messages about policies: values of fields that hold them, and what looks like one."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

import yaml

HIDDEN = "***"
MIN_CHARACTERS = 4
"""Shorter values are in ordinary words, and no secrets."""
MIN_PART_CHARACTERS = 6
"""Length of a part of a key in an expression without quotes: errors name what is between its hyphens."""
MIN_BASE64_CHARACTERS = 8
"""Fewer would be found in ordinary text."""
MIN_SQUEEZED_CHARACTERS = 8
"""Shorter secrets are found in one piece only."""

_SPACE = r"\s|\\+(?:[nrt]|(?=\s|$))?"
_GAP = rf"(?:{_SPACE})*"
_KEY_ID = re.compile(r"key-[0-9a-f]{8}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_PREFIXED = re.compile(
    r"\b(?:sk|rk|gsk|csk|hf|gh[opsu]|github_pat|glpat|xox[abprs]|xai|pplx|nvapi|tgp|fw)[-_][\w-]{5,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{10,}(?:\.[\w-]*)*|"
    r"(?i:\bbearer[ \t]+)[^\s'\",]+|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
)
_PLACE = re.compile(r"(:\\?/\\?/)(?!\[\^)([^\s'\"]+)")
"""What a URL has after its scheme, also as JSON may write it; not the expression that an error asks for."""
_RUN = re.compile(r"(?<![\w/.])[A-Za-z0-9+=_-]{16,}")
_SECRET_FIELD = re.compile(
    r"(?i)keys?|.*(?:api|access|private)[-_]?keys?|.*(?:passw(?:or)?d|secret|authorization|bearer|_env|_url)|"
    r"(?:.*_)?token|url|uri|proxy|credentials"
)
_URL_FIELD = re.compile(r"(?i).*(?:url|uri|proxy|redis)")
_TENANT_FIELD = re.compile(r"principals|operators|exempt_tenants|tenants?")


def looks_secret(text: str) -> bool:
    """Whether the text has the form of an API key, a token or a URL with a login."""
    return _without_forms(text) != text


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without what looks like one."""
    return _without_forms(hidden(text, secrets))


def without_keys(text: str) -> str:
    """A file's text without what has the form of a key, logins and queries of URLs; long digests stay."""
    return _PLACE.sub(_without_query, _PREFIXED.sub(HIDDEN, _PLACE.sub(_without_login, text)))


def _without_login(found: re.Match[str]) -> str:
    """Passwords may hold "/", "@" and "?"; after a "?" an "@" may be of the query, and all is hidden."""
    login, at, after = found[2].rpartition("@")
    if at:
        after = HIDDEN if "?" in login else f"{HIDDEN}@{after}"
    return found[1] + after


def _without_query(found: re.Match[str]) -> str:
    path, mark, query = found[2].partition("?")
    return found[1] + path + mark + (HIDDEN if query else "")


def hidden(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, also quoted, escaped, over lines or in Base64. Lines stay."""
    shapes = sorted((_shape(each) for each in secrets if len(each) >= MIN_CHARACTERS), key=_longest_first)
    for shape in shapes:
        for form in shape.forms:
            text = text.replace(form, HIDDEN + "\n" * form.count("\n"))
    squeezed = _squeezed(text)
    for shape in shapes:
        if shape.squeezed and shape.squeezed in squeezed:
            text = re.sub(
                _GAP.join(map(_any_escape, shape.squeezed)),
                lambda found: HIDDEN + "\n" * found[0].count("\n"),
                text,
            )
    return text


class _Shape(NamedTuple):
    """How a secret may be written."""

    forms: tuple[str, ...]  # the longest first
    squeezed: str  # "" for a short one, which would be found across words


def _longest_first(shape: _Shape) -> int:
    return -len(shape.forms[0])


@functools.lru_cache(maxsize=4096)
def _shape(secret: str) -> _Shape:
    quoted = repr(secret)[1:-1], repr(f"'{secret}")[2:-1]  # in the other quotes, if it has a quote itself
    json_forms = json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]
    forms = {secret, *quoted, *json_forms, *base64_forms(secret.encode(errors="surrogatepass"))}
    is_long = len(secret) >= MIN_SQUEEZED_CHARACTERS
    return _Shape(tuple(sorted(forms, key=len, reverse=True)), _squeezed(secret) if is_long else "")


def _squeezed(text: str) -> str:
    """Without what YAML, `repr` and JSON put between the parts of a text that is broken over lines."""
    text = re.sub(_SPACE, "", text)
    return unquote(text) if "%" in text else text


def _any_escape(character: str) -> str:
    code = _GAP.join("".join(f"%{byte:02x}" for byte in character.encode(errors="surrogatepass")))
    return rf"(?:{re.escape(character)}|(?i:{code}))"


def base64_forms(secret: bytes) -> Iterator[str]:
    """The characters that encode `secret` alone, at whichever offset of a longer text."""
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + secret).rstrip(b"=").decode()
        first = (0, 2, 3)[shift]  # characters that hold bits of what is before
        last = len(encoded) - (1 if (shift + len(secret)) % 3 else 0)  # or of what comes after
        if last - first >= MIN_BASE64_CHARACTERS:
            yield encoded[first:last]
            yield encoded[first:last].replace("+", "-").replace("/", "_")


def _without_forms(text: str) -> str:
    text = _PLACE.sub(_without_login, text)
    text = _PREFIXED.sub(HIDDEN, text)
    return _RUN.sub(lambda found: HIDDEN if _is_random(found[0]) else found[0], text)


def _is_random(run: str) -> bool:
    """Letters mixed with digits in one long word, as no name of a model or variable is."""
    for word in re.split(r"[-_=+]", run):
        changes = len(re.findall(r"[0-9](?=[A-Za-z])|[A-Za-z](?=[0-9])", word))
        if len(word) >= 16 and changes >= 4:
            return True
    return False


def secret_values(root: yaml.Node) -> set[str]:
    """The values of a document's fields that hold secrets, or into which people paste them."""
    found = {value.strip() for value in _values(root, ())}
    return {value for value in found if len(value) >= MIN_CHARACTERS}


def _values(node: yaml.Node, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            if path == ("tenants",) and not _has_keys(value):
                yield from _tenant(name)
            if _is_secret_path(path) and not is_secret_field(name):  # a value where a mapping has its keys
                yield from _of_field(path[-1], name)
            yield from _values(value, (*path, name))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _values(item, path)
    elif path and isinstance(node, yaml.ScalarNode):
        yield from _of_scalar(node.value, path)


def _of_scalar(value: str, path: tuple[str, ...]) -> Iterator[str]:
    if _is_secret_path(path):
        yield from _of_field(path[-1], value)
    elif _TENANT_FIELD.fullmatch(path[-1]):
        yield from _tenant(value)
    elif path[-1] == "when":
        for found in _PREFIXED.finditer(value):
            yield from (part for part in re.split(r"\W|-", found[0]) if len(part) >= MIN_PART_CHARACTERS)


def is_secret_field(name: str) -> bool:
    """Whether a field of this name holds secrets, or is one into which people paste them."""
    return _SECRET_FIELD.fullmatch(name) is not None


def _is_secret_path(path: tuple[str, ...]) -> bool:
    return bool(path) and is_secret_field(path[-1]) and path[0] not in ("probes", "routing")


def _of_field(field: str, value: str) -> Iterator[str]:
    if _KEY_ID.fullmatch(value):
        return
    if field.lower().endswith("_env") and _VARIABLE.fullmatch(value) and not looks_secret(value):
        return
    if _URL_FIELD.fullmatch(field) and "://" in value:
        yield from _of_url(value)
    elif value not in ("null", "true", "false", "google", "~") and not value.isdigit():
        yield value


def _of_url(url: str) -> Iterator[str]:
    """Its login and query, and parts of its path that look like keys; a host is no secret."""
    place = url.partition("://")[2]
    login, at, after = place.rpartition("@")
    if at:
        yield from (login, *login.split(":"))
    path, _, query = after.partition("?")
    if query:
        yield from (query, *re.split(r"[&=#]", query))
    yield from (part for part in path.split("/")[1:] if looks_secret(part))


def _has_keys(tenant: yaml.Node) -> bool:
    pairs = tenant.value if isinstance(tenant, yaml.MappingNode) else []
    return any(isinstance(key, yaml.ScalarNode) and key.value == "keys" for key, _ in pairs)


def _tenant(name: str) -> Iterator[str]:
    """A tenant's name that may be an API key in the wrong place."""
    if not _KEY_ID.fullmatch(name) and name != "default" and re.search(r"[^a-z_-]|.{24}", name):
        yield name
