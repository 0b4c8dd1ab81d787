"""A family is known in its own module only: nothing else in the engine or the gateway names architectures."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from backend.models.families import FAMILIES

ROOT = Path(__file__).resolve().parents[4]
FAMILY_MODULES = ROOT / "backend" / "models" / "families"
# Training chooses among transformers' own classes, not among ours.
TRAINING = ROOT / "backend" / "pico"
SELECTORS = {"architecture", "architectures", "model_type"}


def offences(source: str) -> list[str]:
    """Literals that are a family's name, and comparisons or matches of an architecture or a model type."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in FAMILIES:
            found.append(f"{node.lineno}: {node.value}")
        elif isinstance(node, ast.Compare | ast.Match):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject]
            if any(selects(side) for side in sides):
                found.append(f"{node.lineno}: {ast.unparse(node)[:80]}")
    return found


def selects(side: ast.expr) -> bool:
    """Whether the expression reads an architecture or a model type, by name, attribute or key."""
    match side:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SELECTORS
        case ast.Subscript(slice=ast.Constant(value=key)) | ast.Call(args=[ast.Constant(value=key), *_]):
            return key in SELECTORS
    return False


def test_architectures_are_compared_nowhere_else() -> None:
    paths = [
        path for package in ("backend", "gateway", "policies") for path in ROOT.glob(f"{package}/**/*.py")
    ]
    found = {
        str(path.relative_to(ROOT)): listed
        for path in paths
        if FAMILY_MODULES not in path.parents and TRAINING not in path.parents
        if (listed := offences(path.read_text(encoding="utf-8")))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "if config.architecture == other: pass",
        "if raw.get('model_type') == 'mixtral': pass",
        "if raw['model_type'] in ('qwen2', 'qwen3'): pass",
        "match architecture:\n    case _: pass",
        "names = ('LlamaForCausalLM',)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert offences(source)


def test_each_family_has_a_module_and_a_test() -> None:
    modules = {path.stem for path in FAMILY_MODULES.glob("*.py")} - {"__init__", "family"}
    tests = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {
        "families"
    }
    assert modules == tests and len(modules) == len(FAMILIES)
