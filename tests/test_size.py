"""Size ratchet: short files and functions, few parameters, shallow nesting. It may shrink, never grow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_layout import ROOT, statements

PACKAGES = ("gateway", "cache", "router", "guardrails", "policies", "backend")

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 150
MAX_PARAMETERS = 8
MAX_NESTING = 4

# "path" or "path:function" → the reason. Take entries out as they are mended.
RATCHET: dict[str, str] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Deepest stack of blocks inside a function; an `elif` counts as its `if`, inner functions not at all."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            continue
        is_elif = isinstance(child, ast.If) and isinstance(node, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child, depth + (isinstance(child, BLOCKS) and not is_elif)))
    return deepest


def is_kernel(function: Function) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def function_faults(function: Function) -> Iterator[str]:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    arguments = [a.arg for a in function.args.posonlyargs + function.args.args + function.args.kwonlyargs]
    parameters = [name for name in arguments if name not in ("self", "cls")]
    if lines > (MAX_KERNEL_LINES if is_kernel(function) else MAX_FUNCTION_LINES):
        yield f"{lines} lines"
    if len(parameters) > MAX_PARAMETERS and not is_kernel(function):
        yield f"{len(parameters)} parameters"
    if nesting(function) > MAX_NESTING:
        yield f"nested {nesting(function)} deep"


@cache
def faults() -> tuple[tuple[str, str], ...]:
    return tuple(fault for path in sources() for fault in faults_of(path))


def faults_of(path: Path) -> Iterator[tuple[str, str]]:
    name = str(path.relative_to(ROOT))
    text = path.read_text(encoding="utf-8")
    if len(text.splitlines()) > MAX_FILE_LINES:
        yield name, f"{len(text.splitlines())} lines"
    for node in statements(text):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from ((f"{name}:{node.name}", fault) for fault in function_faults(node))


def test_nothing_outgrows_its_limit() -> None:
    assert [(where, fault) for where, fault in faults() if where not in RATCHET] == []


def test_ratchet_holds_no_mended_entry() -> None:
    assert set(RATCHET) - {where for where, _ in faults()} == set()


def test_every_module_has_a_docstring() -> None:
    modules = [path for path in sources() if path.read_text(encoding="utf-8").strip()]
    assert [str(p) for p in modules if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))] == []
