"""Docstrings, comments and Markdown use the field's terms; a docstring begins with its noun or verb."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_layout import ROOT, tracked_files

INSTEAD = {
    "nobody": "no request, no caller, none",
    "somebody": "a request, a caller, another sequence",
    "whoever": "the caller, clients that",
    "anew": "again, rebuilt, recomputed",
    "of late": "recently, the moving average",
    "so manyth": "n-th, every n-th",
    "shunned": "avoided",
    "dearer": "more expensive",
    "for want of": "without, for lack of",
    "read along": "hidden-state capture",
    "sooner or later": "eventually",
    "hiccup": "outlier",
    "so many": "that number of, n",
    "what came of": "the outcome, acceptance",
    "for ever": "forever",
    "anybody": "any request, any caller",
    "everybody": "all callers, all requests",
}
_WORDS = re.compile(rf"(?i)\b({'|'.join(map(re.escape, INSTEAD))})\b")

_NO_OPENING = re.compile(r"\s*(Of|That|Those|As|It|See)\b")
_MAY_OPEN = re.compile(rf"[\"']\\?{_NO_OPENING.pattern}")  # a string, a docstring or not, that begins so


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each comment and docstring, those after assignments included."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for line, text in docstrings(source):
        yield from enumerate(text.split("\n"), line)


def prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of a file's prose: comments and docstrings, or all of a Markdown file."""
    if path.suffix == ".py":
        yield from python_prose(text)
    elif path.suffix == ".md":
        yield from enumerate(text.split("\n"), 1)
    else:
        yield from ((n, line.partition("#")[2]) for n, line in enumerate(text.split("\n"), 1))


def problems(path: Path, text: str) -> list[str]:
    if not _WORDS.search(text):  # hardly any file needs to be read token by token
        return []
    return [
        f"{path}:{line}: {match[0]!r}; write for example: {INSTEAD[match[0].lower()]}"
        for line, words in prose(path, text)
        for match in _WORDS.finditer(words)
    ]


@cache
def docstrings(source: str) -> list[tuple[int, str]]:
    """Line number and text of each docstring, those after assignments included."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found.append((node.lineno, text))
    return found


def opening_problems(path: Path, source: str) -> list[str]:
    """Docstrings whose first word stands for a noun that is not there, or that send the reader elsewhere."""
    if not _MAY_OPEN.search(source):  # hardly any file needs to be parsed
        return []
    return [
        f"{path}:{line}: begins with {match[0]!r}; write a sentence with the noun in it"
        for line, text in docstrings(source)
        if (match := _NO_OPENING.match(text))
    ]


def has_prose(path: Path) -> bool:
    return path.suffix in {".md", ".py", ".yaml", ".yml"} or path.name == "Dockerfile"


def test_prose_uses_the_fields_terms() -> None:
    files = [path for path in tracked_files() if has_prose(path)]
    found = [problem for path in files for problem in problems(path, (ROOT / path).read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_docstrings_begin_with_their_noun() -> None:
    files = [path for path in tracked_files() if path.suffix == ".py"]
    found = [each for path in files for each in opening_problems(path, (ROOT / path).read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("opening", ["Of a", "That of b", "Those", "As c", "It d", "See E.", "\n    Of f"])
def test_openings_without_a_noun_are_found(opening: str) -> None:
    for source in (f'"""{opening}"""', f'X = 1\n"""{opening}"""', f'def f():\n    """{opening}"""'):
        assert len(opening_problems(Path("a.py"), source)) == 1


def test_openings_with_a_noun_are_fine() -> None:
    for opening in ("Often", "Items", "Seeds of it", "Assets", "Thats"):
        assert opening_problems(Path("a.py"), f'"""{opening}"""') == []


def test_all_kinds_of_prose_are_checked() -> None:
    python = '"""First.\n\nNobody."""\nX = 1  # anew\n"""Whoever."""\nTEXT = "nobody in data"\n'
    assert [problem[:6] for problem in problems(Path("a.py"), python)] == ["a.py:4", "a.py:3", "a.py:5"]
    assert len(problems(Path("a.md"), "so manyth\n\nOf late")) == 2
    assert len(problems(Path("a.yaml"), "key: nobody  # dearer")) == 1
