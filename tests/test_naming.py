"""A name that asks, `is_…` or `has_…`, changes nothing: reading a state must be safe anywhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_layout import ROOT, statements

PACKAGES = ("gateway", "cache", "router", "guardrails", "policies", "backend")
ASKING = ("is_", "has_")
MUTATORS = {
    "add",
    "append",
    "appendleft",
    "cancel",
    "clear",
    "close",
    "discard",
    "extend",
    "insert",
    "move_to_end",
    "pop",
    "popitem",
    "popleft",
    "put",
    "put_nowait",
    "remove",
    "reverse",
    "send",
    "set",
    "set_exception",
    "set_result",
    "setdefault",
    "sort",
    "start",
    "submit",
    "update",
    "write",
}


def asking_functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in statements(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_").startswith(
            ASKING
        ):
            yield node


def _mutates(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and called.attr in MUTATORS


def effects(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Assignments to attributes and items, and calls that change the object before the dot.

    What the function made itself, under a plain local name, it may change.
    """
    own = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
        if isinstance(node.value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.SetComp | ast.DictComp)
    }
    found = []
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
        ):
            targets = [node.func]
        for target in targets:
            if isinstance(target, ast.Attribute | ast.Subscript) and not is_local(target.value, own):
                found.append(f"{node.lineno}: {ast.unparse(node)[:80]}")
    return found


def is_local(owner: ast.expr, own: set[str]) -> bool:
    return isinstance(owner, ast.Name) and owner.id in own


def test_functions_that_ask_have_no_effects() -> None:
    found = {}
    for path in (path for package in PACKAGES for path in ROOT.glob(f"{package}/**/*.py")):
        for function in asking_functions(path.read_text(encoding="utf-8")):
            if changed := effects(function):
                found[f"{path.relative_to(ROOT)}:{function.name}"] = changed
    assert not found


@pytest.mark.parametrize(
    "body",
    [
        "self.last = now",
        "self.seen[key] = True",
        "self.count += 1",
        "del self.seen[key]",
        "self.order.move_to_end(key)",
        "queue.append(key)",
        "if not ready:\n        self._wanted.pop(key)",
    ],
)
def test_effects_are_found(body: str) -> None:
    (function,) = asking_functions(f"def _is_ready(self, key):\n    {body}\n    return True")
    assert effects(function)


@pytest.mark.parametrize(
    "body", ["count = 1", "found = []\n    found.append(key)", "return key in self.seen", "self.get(key)"]
)
def test_reading_is_no_effect(body: str) -> None:
    (function,) = asking_functions(f"def has_room(self, key):\n    {body}")
    assert not effects(function)
