"""Checks of the cache's references: which encoder compares meanings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from policies.convert import KeyPath
from policies.errors import Place, Problem
from policies.names import nearest


def cache_problems(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """Encoders that do not exist, that are missing or ambiguous, and caches of encoders."""
    models, section = sections["models"], sections["cache"]
    encoders = sorted(name for name in models if ("models", name, "encoder") in places)
    named = section.get("encoder")
    if named is not None and named not in encoders:
        what = "is not an encoder" if named in models else "is not a model"
        message = f"cache.encoder {named!r} {what}{nearest(named, encoders)}"
        yield Problem(places[("cache", "encoder")], message)
    for name in encoders:
        if ("models", name, "cache") in places:
            message = f"models.{name} is an encoder: its vectors are not cached; remove `cache`"
            yield Problem(places[("models", name, "cache")], message)
    for path in [path for path in places if path[-2:] == ("cache", "mode")]:
        if _at(sections, path) == "semantic" and named is None and len(encoders) != 1:
            where, which = ".".join(path), ", ".join(encoders)
            remedy = (
                f"name one of {which} in `cache.encoder`"
                if encoders
                else "add a model with a section `encoder`"
            )
            yield Problem(places[path], f"{where} is 'semantic', which needs an encoder; {remedy}")


def _at(sections: Mapping[str, Any], path: KeyPath) -> object:
    value: Any = sections
    for key in path:
        value = value[int(key)] if isinstance(value, list) else value.get(key)
    return value
