"""Docstrings, comments and Markdown use the field's terms, not the private vocabulary of earlier versions."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

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


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each comment and docstring, those after assignments included."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from enumerate(text.split("\n"), node.lineno)


def prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of a file's prose: comments and docstrings, or all of a Markdown file."""
    if path.suffix == ".py":
        yield from python_prose(text)
    elif path.suffix == ".md":
        yield from enumerate(text.split("\n"), 1)
    else:
        yield from ((n, line.partition("#")[2]) for n, line in enumerate(text.split("\n"), 1))


def problems(path: Path, text: str) -> list[str]:
    return [
        f"{path}:{line}: {match[0]!r}; write for example: {INSTEAD[match[0].lower()]}"
        for line, words in prose(path, text)
        for match in _WORDS.finditer(words)
    ]


def has_prose(path: Path) -> bool:
    return path.suffix in {".md", ".py", ".yaml", ".yml"} or path.name == "Dockerfile"


def test_prose_uses_the_fields_terms() -> None:
    files = [path for path in tracked_files() if has_prose(path)]
    found = [problem for path in files for problem in problems(path, (ROOT / path).read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_all_kinds_of_prose_are_checked() -> None:
    python = '"""First.\n\nNobody."""\nX = 1  # anew\n"""Whoever."""\nTEXT = "nobody in data"\n'
    assert [problem[:6] for problem in problems(Path("a.py"), python)] == ["a.py:4", "a.py:3", "a.py:5"]
    assert len(problems(Path("a.md"), "so manyth\n\nOf late")) == 2
    assert len(problems(Path("a.yaml"), "key: nobody  # dearer")) == 1
