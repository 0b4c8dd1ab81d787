"""Texts of policy files without secrets: the values of fields that hold them, however YAML writes these.

Of YAML only the values themselves are hidden. Comments, and text that is no YAML, are read by lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import yaml

from policies.nodes import nodes_of
from policies.redaction import HIDDEN, hidden, looks_secret, without_keys
from policies.time_limit import check_time

_SHOWN, _DOUBTED, _SECRET = range(3)
"""What a field's values may show: all, what does not look like a secret, nothing."""
_SURE = re.compile(
    r"(?i)(?:(?:api|access|private|secret|signing|master|encryption)[-_ ]?keys?|passw(?:or)?ds?|passphrase"
    r"|secrets?|authorization|bearer|token|(?:api|access|auth|bearer|refresh|secret)[-_ ]?tokens)\Z"
)
"""How the names of fields end that never hold anything but secrets."""
_DOUBTFUL = re.compile(r"(?i).*(?:keys?|credentials|proxy|_env)")
_HARMLESS = r"\$\{[A-Z_][A-Z0-9_]*\}|key-[0-9a-f]{8}|null|~"
"""References, ids of keys, nothing."""
_HARMLESS_VALUE = re.compile(_HARMLESS)
_HARMLESS_LINE = re.compile(rf"['\"]?(?:{_HARMLESS})['\"]?[\s,}}\]]*|['\"]{{2}}[\s,}}\]]*")
_BEARER = re.compile(r"(?i)(\bbearer\s+)[^\s'\",#][^\s'\",]*")
_PROPERTY = re.compile(r"[&!]\S*")
_HEADER = re.compile(r"[|>][-+0-9]*")
_TO_LINE_END = re.compile(r"\S[^\r\n]*")
_COMMENT = re.compile(r"\A([ \t]*#)[^\r\n]*")
_LINE = re.compile(r"[^\r\n]+")
_INDENT = re.compile(r"[ \t]*(#?)[ \t#-]*")
_FIELD = re.compile(r"(?<![\w.-])([\w.-]+)['\"]?[ \t]*(:|=(?!=)|$)[ \t]*")
_OPENING = re.compile(r"[|>&!?#\[{]|$")
"""How the rest of a line begins after which a value goes on in the next line, whatever its indentation."""


def masked(text: str, secrets: Collection[str]) -> str:
    """A file's text without these secrets, values of fields that hold secrets, and what looks like one.

    No line is added or lost. Long digests stay: the file can be changed and written back.
    """
    mark, text = text[: text[:1] == "\ufeff"], text.removeprefix("\ufeff")  # libyaml does not count it
    try:
        shown = "".join(_rendered(text, nodes_of(text)))
    except yaml.YAMLError:
        shown = _by_lines(_BEARER.sub(rf"\1{HIDDEN}", text), is_broken=True)
    return mark + without_keys(hidden(shown, secrets))


def _rendered(text: str, documents: Sequence[yaml.Node]) -> Iterator[str]:
    """The text, part by part: of nodes, and what is between them."""
    end, shown, own = 0, "", ""
    for node, level in _levels(documents):
        check_time()
        first, last = node.start_mark.index, node.end_mark.index
        if not isinstance(node, yaml.ScalarNode):
            found = _PROPERTY.match(text, first) if level == _SECRET else None
            last = found.end() if found else first
        if first < end or first == last:
            continue
        yield _between(text[end:first], shown, own)
        own = text[first:last]
        shown = _value(own, node.value, level)
        yield shown
        end = last
    yield _between(text[end:], shown, own)


def _levels(documents: Sequence[yaml.Node]) -> list[tuple[yaml.Node, int]]:
    """Each node in the order of the text, with what it may show.

    What an alias repeats is shown as in the most careful of the fields that it is in.
    """
    found: dict[int, tuple[yaml.Node, int]] = {}
    left = [(document, _SHOWN) for document in documents]
    while left:
        node, level = left.pop()
        if id(node) in found and found[id(node)][1] >= level:
            continue
        found[id(node)] = node, level
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                left += (key, level), (value, max(level, _level_of(key)))
        elif isinstance(node, yaml.SequenceNode):
            left += ((item, level) for item in node.value)
    return sorted(found.values(), key=lambda each: each[0].start_mark.index)


def _level_of(key: yaml.Node) -> int:
    if not isinstance(key, yaml.ScalarNode) or _secret_start(key.value) is not None:
        return _SECRET  # policies have no such keys; without a space YAML reads `token:a` as one
    return _level(key.value)


def _level(name: str) -> int:
    name = name.strip(" \t'\"")
    if _SURE.search(name):
        return _SECRET
    return _DOUBTED if _DOUBTFUL.fullmatch(name) else _SHOWN


def _value(text: str, value: object, level: int) -> str:
    """A scalar as it is written, or a tag. Quotes stay, and what begins a block."""
    is_scalar = isinstance(value, str)
    if is_scalar and _HARMLESS_VALUE.fullmatch(str(value)):
        return text
    head = found[0] if is_scalar and (found := _HEADER.match(text)) else ""
    tail = ""
    if is_scalar and len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        head = tail = text[0]
    inner = text[len(head) : len(text) - len(tail)]
    is_secret = level == _SECRET or (level == _DOUBTED and looks_secret(inner))
    if is_secret or (isinstance(value, str) and value != inner and _is_veiled(inner, value)):
        return head + _TO_LINE_END.sub(HIDDEN, inner) + tail
    return head + _by_lines(inner) + tail if ":" in inner or "=" in inner else text


def _is_veiled(text: str, value: str) -> bool:
    """Whether a value has a key, a login or a query of a URL that is not found in it as it is written."""
    words = " ".join(value.split())
    clean = without_keys(words)
    return clean != words and clean.split() != without_keys(text).split()


def _between(text: str, shown: str, own: str) -> str:
    """Comments, after a value: one in the line of a hidden value is the rest of a secret without quotes."""
    if "#" not in text:
        return text
    if shown != own and own[-1] not in "\r\n":
        text = _COMMENT.sub(rf"\1 {HIDDEN}", text)
    return _by_lines(text)


def _by_lines(text: str, *, is_broken: bool = False) -> str:
    """Text without what stands after the name of a field in its line, and in lines that belong to it.

    Of broken YAML that is all after a bracket or a quote which the line does not close.
    """
    width, was_comment, is_open, is_endless = -1, "", False, False  # of the latest such line

    def shown(found: re.Match[str]) -> str:
        nonlocal width, was_comment, is_open, is_endless
        check_time()
        line = found[0]
        indent = _INDENT.match(line)
        assert indent is not None
        field = _FIELD.match(line, indent.end())
        is_inside = indent.end() > width or (is_open and not (field and field[2]))
        if is_endless or (width >= 0 and indent[1] == was_comment and is_inside):
            return indent[0] + HIDDEN
        width = -1
        if (start := _secret_start(line)) is None:
            return line
        width, was_comment, is_open = indent.end(), indent[1], _OPENING.match(line, start) is not None
        is_endless = is_broken and _is_unclosed(line[start:])
        is_shown = start == len(line) or _HEADER.fullmatch(line, start)
        return line if is_shown else line[:start] + HIDDEN

    return _LINE.sub(shown, text)


def _is_unclosed(text: str) -> bool:
    opening, closing = (sum(map(text.count, pair)) for pair in ("[{", "]}"))
    return opening > closing or text.count("'") % 2 == 1 or text.count('"') % 2 == 1


def _secret_start(line: str) -> int | None:
    """Where in a line the value of a field begins that is, or looks like, a secret."""
    is_doubted = False
    for found in _FIELD.finditer(line):
        if not found[2] and not line[: found.start()].rstrip(" \t'\"").endswith("?"):
            continue  # a last word; after "?" it is a key
        level, start = _level(found[1]), found.end()
        if level == _DOUBTED and not is_doubted:
            is_doubted = True  # those after it are in its rest of the line
            level = _SECRET if looks_secret(line[start:]) else _SHOWN
        if level == _SECRET and not _HARMLESS_LINE.fullmatch(line, start):
            return start
    return None
