"""The schema agrees with the loader on valid and invalid documents."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from gateway.cli.policy_schema import document_schema

DEFAULT = Path(__file__).parents[3] / "policies" / "default"


@pytest.mark.parametrize("file", sorted(DEFAULT.glob("*.yaml")), ids=lambda p: p.name)
def test_default_documents_fit(file: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(document_schema())
    jsonschema.validate(yaml.safe_load(file.read_text()), document_schema())


@pytest.mark.parametrize(
    "document",
    [
        {"modls": {}},
        {"models": {"a": {}}},
        {"models": {"a": {"engine": {"checkpoint": "x"}, "encoder": {"checkpoint": "x"}}}},
        {"models": {"a": {"engine": {"checkpoint": ""}}}},
        {"models": {"a": {"upstream": {"base_url": "ftp://x"}}}},
        {"routes": {"auto": {"modle": "x"}}},
    ],
)
def test_bad_documents_do_not_fit(document: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, document_schema())
