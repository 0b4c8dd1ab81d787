"""The JSON Schema of a policy document, for editors: derived from the records, published as schema.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from policies.document import Document

SCHEMA_PATH = Path(__file__).with_name("schema.json")


def document_schema() -> dict[str, Any]:
    """Return the schema of one YAML document."""
    schema = msgspec.json.schema(Document)
    definitions = schema["$defs"]
    definitions["Document"]["patternProperties"] = {"^x-": {"description": "Ignored: a place for anchors."}}
    kinds = [{"required": [kind]} for kind in ("engine", "upstream", "encoder")]
    definitions["ModelEntry"]["oneOf"] = kinds
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Penstock policies", **schema}


def schema_text() -> str:
    """Return the schema as the published file holds it."""
    return json.dumps(document_schema(), indent=2) + "\n"
