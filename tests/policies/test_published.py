"""The published reference and schema are what the records say."""

from __future__ import annotations

from gateway.cli.policy_reference import REFERENCE_PATH, reference_text
from gateway.cli.policy_schema import SCHEMA_PATH, schema_text
from policies.document import Document
from policies.variables import VARIABLES


def test_the_published_reference_is_current() -> None:
    command = "run: penstock schema --markdown > policies/REFERENCE.md"
    assert REFERENCE_PATH.read_text() == reference_text(), command


def test_the_published_schema_is_current() -> None:
    assert SCHEMA_PATH.read_text() == schema_text(), "run: penstock schema > policies/schema.json"


def test_every_section_and_variable_is_described() -> None:
    text = reference_text()
    for name in (*Document.__struct_fields__, *VARIABLES):
        assert f"| `{name}` |" in text
