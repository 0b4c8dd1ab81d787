"""What is shown defines the same policies."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from policies.load import load_policies
from policies.show import shown
from tests.policies.test_load import DEFAULT

EXAMPLES = [DEFAULT, *sorted((DEFAULT.parent / "examples").glob("*/"))]


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_it_defines_the_same_policies(folder: Path, tmp_path: Path) -> None:
    policies = load_policies(folder)
    text = shown(policies)
    (tmp_path / "all.yaml").write_text(text)
    again = load_policies(tmp_path)
    assert text.startswith(f"# version {policies.version}\n")
    assert msgspec.structs.replace(again, version="") == msgspec.structs.replace(policies, version="")


def test_defaults_are_visible() -> None:
    text = shown(load_policies(DEFAULT))
    assert "max_queue: 512" in text and "max_attempts: 3" in text and "null" not in text
