from __future__ import annotations

from gateway.requests.subschemas import place, subschemas

SCHEMA = {
    "type": "object",
    "properties": {"city": {"anyOf": [{"type": "null"}, {"type": "string"}]}, "not a name!": {}},
    "items": {"enum": [{"type": "x"}]},
    "$defs": {"a": True},
}


def test_walks_all_subschemas_breadth_first() -> None:
    found = [place(path) for path, _ in subschemas(SCHEMA)]
    assert found == [
        "",
        ".properties.city",
        ".properties[1]",
        ".items",
        ".$defs.a",
        ".properties.city.anyOf[0]",
        ".properties.city.anyOf[1]",
    ]


def test_gives_the_schema_at_each_place() -> None:
    assert {place(path): node for path, node in subschemas(SCHEMA)}[".properties.city.anyOf[1]"] == {
        "type": "string"
    }
    assert [*subschemas("no schema")] == [((), "no schema")]
