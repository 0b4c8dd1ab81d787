"""Flags whose defaults are slow to import cost nothing where their command is not given."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from gateway.cli.late_parser import LateParser

ROOT = Path(__file__).parents[3]


def test_flags_are_declared_once_and_only_when_given() -> None:
    declared: list[str] = []
    parser = LateParser()
    commands = parser.add_subparsers()

    def declare(parser: argparse.ArgumentParser) -> None:
        declared.append(parser.prog.split()[-1])
        parser.add_argument("--x")

    for name in ("a", "b"):
        commands.add_parser(name, declare=declare)
    assert parser.parse_args(["b", "--x", "1"]).x == "1"
    assert parser.parse_args(["b", "--x", "2"]).x == "2"
    assert declared == ["b"]


def test_the_list_of_commands_imports_no_package() -> None:
    code = (
        "import sys; from gateway.cli.main import parse; parse(['schema']); "
        "print({'numpy', 'msgspec', 'yaml', 'cel_expr_python', 'importlib.metadata'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
