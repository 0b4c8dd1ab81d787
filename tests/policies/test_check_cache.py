from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.load import load_policies

MODELS = """\
models:
  small:
    engine: {checkpoint: builtin:pico-small}
  minilm:
    encoder: {checkpoint: builtin:all-minilm-l6-v2}
"""
OTHER = "  other:\n    encoder: {checkpoint: builtin:all-minilm-l6-v2}\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            MODELS + "cache:\n  encoder: minilmm\n",
            7,
            "cache.encoder 'minilmm' is not a model; did you mean 'minilm'?",
        ),
        (MODELS + "cache:\n  encoder: small\n", 7, "cache.encoder 'small' is not an encoder; known: minilm"),
        (
            MODELS + "    cache: {mode: exact}\n",
            6,
            "models.minilm is an encoder: its vectors are not cached; remove `cache`",
        ),
        (
            MODELS.split("  minilm")[0] + "cache: {mode: semantic}\n",
            4,
            "cache.mode is 'semantic', which needs an encoder; add a model with a section `encoder`",
        ),
        (
            MODELS.replace("pico-small}", "pico-small}\n    cache: {mode: semantic}") + OTHER,
            4,
            "models.small.cache.mode is 'semantic', which needs an encoder; name one of minilm, other in",
        ),
        (
            MODELS.split("  minilm")[0]
            + "routes:\n  r:\n    model: small\n    rules: [{model: small, cache: {mode: semantic}}]\n",
            7,
            "routes.r.rules.0.cache.mode is 'semantic', which needs an encoder",
        ),
    ],
)
def test_problems(tmp_path: Path, text: str, line: int, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_policies(tmp_path)
    (problem,) = caught.value.problems
    assert problem.place.line == line and problem.message.startswith(message)


@pytest.mark.parametrize(
    "section",
    ["", "cache: {mode: exact}\n", "cache: {mode: semantic}\n", "cache: {mode: semantic, encoder: minilm}\n"],
)
def test_valid_sections(tmp_path: Path, section: str) -> None:
    (tmp_path / "a.yaml").write_text(MODELS + section)
    load_policies(tmp_path)


def test_a_named_encoder_settles_several(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MODELS + OTHER + "cache: {mode: semantic, encoder: other}\n")
    load_policies(tmp_path)
