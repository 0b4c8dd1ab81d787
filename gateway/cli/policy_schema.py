"""JSON Schema of a policy document, for editors: derived from `document.py`, published as schema.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from policies.document import Document

SCHEMA_PATH = Path(__file__).parents[2] / "policies" / "schema.json"


def document_schema() -> dict[str, Any]:
    """Return the schema of one YAML document."""
    schema = msgspec.json.schema(Document)
    definitions = schema["$defs"]
    definitions["Document"]["patternProperties"] = {"^x-": {"description": "Ignored; use it for anchors."}}
    kinds = [{"required": [kind]} for kind in ("engine", "upstream", "encoder")]
    definitions["ModelEntry"]["oneOf"] = kinds
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Penstock policies", **schema}


def schema_text() -> str:
    """Return the content of schema.json."""
    # `typing` shares equal annotations, so whether a bound is 2 or 2.0 depends on the order of imports.
    schema = json.loads(json.dumps(document_schema()), parse_float=_shortest)
    return json.dumps(schema, indent=2) + "\n"


def _shortest(number: str) -> int | float:
    value = float(number)
    return int(value) if value.is_integer() else value
