"""YAML text → nodes with line numbers. No tag is ever constructed, so none can run code or create an object.

File size, nesting depth and expanded node count are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from yaml.composer import Composer

from policies.errors import Place, PolicyError, Problem
from policies.time_limit import check_time

MAX_FILE_BYTES = 512 * 1024
MAX_DEPTH = 24
MAX_NODES = 100_000
"""Bound on the nodes of one file after alias expansion ("billion laughs")."""


_REMEDIES = {
    "'\\t'": "indent with spaces",
    "cannot start any token": "quote a value that begins with it",
    "expected <block end>": "check the indentation, and write quotes inside a value as the other kind",
    "could not find expected ':'": "end the key with a colon, or quote the value",
    "mapping values are not allowed": "quote a value that holds a colon, or check the indentation",
    "expected ',' or": "close the bracket, or quote a value that holds one",
    "unexpected end of stream": "close the quote or the bracket",
    "undefined alias": "quote a value that begins with *",
}
"""By a part of PyYAML's message."""

_NAMED = re.compile(r"""(alias|anchor|tag handle) (?:'.*?'|".*?")(?=$|[;:])""", re.DOTALL)
"""What PyYAML's messages repeat of a file: it may be an API key."""


class _Composer(Composer):
    """PyYAML's composer with a nesting limit; its own recursion has none."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        check_time()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Loader(_Composer, yaml.SafeLoader):
    """The loader whose messages the remedies know."""


class _FastLoader(_Composer, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same over libyaml, ten times as fast, with marks that have no text."""

    def __init__(self, text: str) -> None:
        super(Composer, self).__init__(text)
        Composer.__init__(self)


def nodes_of(text: str) -> list[yaml.Node]:
    """The root of each document, with marks that count characters. Raises YAMLError."""
    return _documents(_FastLoader(text))


def _documents(loader: yaml.SafeLoader) -> list[yaml.Node]:
    found = []
    while loader.check_node():
        if (node := loader.get_node()) is not None:
            found.append(node)
    return found


def read_documents(path: Path, data: bytes | None = None) -> list[yaml.Node]:
    """Return the root node of each document in the file, or in `data` in its place. Raises PolicyError."""
    file = str(path)
    try:
        size = path.stat().st_size if data is None else len(data)
        if size > MAX_FILE_BYTES:
            message = f"is {size} bytes, over the limit of {MAX_FILE_BYTES} for a policy file; split it"
            raise PolicyError([Problem(Place(file), message)])
        text = (path.read_bytes() if data is None else data).decode("utf-8-sig")
    except OSError as error:
        raise PolicyError([Problem(Place(file), f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise PolicyError([Problem(Place(file, line), "is not UTF-8 text")]) from error
    return _compose(text, file)


def _compose(text: str, file: str) -> list[yaml.Node]:
    try:
        documents = _documents(_Loader(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f"{error.context}: " if error.context else ""
        problem = _NAMED.sub(r"\1", f"{context}{error.problem}")
        message = f"is not valid YAML: {problem}"
        message += next((f"; {remedy}" for part, remedy in _REMEDIES.items() if part in problem), "")
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        raise PolicyError([Problem(place, message)]) from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        message = f"contains the character {error.character!r}, which YAML does not allow"
        raise PolicyError([Problem(Place(file, line), message)]) from error
    _check_expanded_size(documents, file)
    return documents


_TAGS: dict[type[yaml.Node], tuple[str, ...]] = {
    yaml.MappingNode: ("map",),
    yaml.SequenceNode: ("seq",),
    yaml.ScalarNode: ("str", "int", "float", "bool", "null", "merge", "timestamp", "value"),
}
"""YAML's own tags; the first is that of a node without any."""
_TAG_REMEDIES = {
    "include": "remove it: all files of the folder are read, and anchors repeat parts of one",
    "env": "remove it, and write the variable's name into a key that ends in `_env`",
}


def tag_problems(root: yaml.Node, file: str) -> Iterator[Problem]:
    """Tags that nothing reads, such as `!include`; their nodes lose them, to be checked without."""
    seen, left = set[int](), [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        left += _children(node)
        prefix = "tag:yaml.org,2002:"
        names = _TAGS[type(node)]
        if node.tag not in {prefix + name for name in names}:
            remedy = next((text for word, text in _TAG_REMEDIES.items() if word in node.tag), "")
            node.tag = prefix + names[0]
            remedy = remedy or "remove it, or quote a value that begins with !"
            yield Problem(place_of(node, file), f"has a tag that policies do not have; {remedy}")


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_expanded_size(documents: list[yaml.Node], file: str) -> None:
    """Raise PolicyError for recursive aliases and for alias expansion beyond MAX_NODES."""
    sizes: dict[int, int] = {}

    def size_of(node: yaml.Node, above: frozenset[int]) -> int:
        if id(node) in above:
            place = Place(file, node.start_mark.line + 1)
            raise PolicyError([Problem(place, "an anchor contains its own alias")])
        if id(node) not in sizes:
            inside = above | {id(node)}
            sizes[id(node)] = 1 + sum(size_of(child, inside) for child in _children(node))
        return sizes[id(node)]

    for document in documents:
        if size_of(document, frozenset()) > MAX_NODES:
            message = f"expands to more than {MAX_NODES} values through its aliases; use fewer"
            raise PolicyError([Problem(Place(file), message)])


def place_of(node: yaml.Node, file: str) -> Place:
    """Return where the node starts."""
    return Place(file, node.start_mark.line + 1, node.start_mark.column + 1)


def place_in_scalar(node: yaml.Node, file: str, line: int, column: int) -> Place:
    """Return the place of a character of a scalar's text, whose `line` and `column` count from 1.

    Of a text that YAML has folded, only the line where it begins is known.
    """
    start, end = node.start_mark, node.end_mark
    style = getattr(node, "style", None)
    if style == "|" and start.buffer is not None:
        lines = start.buffer[start.pointer :].split("\n")
        first = next((text for text in lines[1:] if text.strip()), "")
        indent = len(first) - len(first.lstrip(" "))
        return Place(file, start.line + 1 + line, indent + column)
    if style == ">" or start.line != end.line:
        return Place(file, start.line + 1)
    return Place(file, start.line + 1, start.column + column + (1 if style else 0))
