"""YAML nodes → plain values that match a record type; collects every problem with its line and column.

Driven by `msgspec.inspect`: the records in `document.py` are the only definition of what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import inspect

from policies.conditions import Condition, ConditionError
from policies.cors import origin_remedy
from policies.errors import Place, Problem
from policies.names import nearest
from policies.nodes import place_in_scalar, place_of
from policies.redaction import is_secret_field, looks_secret
from policies.time_limit import check_time

_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null")}
_MERGE_TAG = "tag:yaml.org,2002:merge"
_WRITE = {
    "_env": "export it in an environment variable and write that variable's name, as OPENAI_API_KEY",
    "keys": "write `key-` and the first 8 hex digits of the key's SHA-256 (`penstock keys id` prints it)",
    "base_url": "write http://HOST:PORT/v1 or https://HOST/v1, without a login or a query",
    "device": "write auto, cpu, cuda or a card by its number, such as cuda:1",
    "headers": "write the name in lower case",
    "proxy": "write http://HOST:PORT; the environment's HTTPS_PROXY may hold a login",
}
"""What to write in fields whose form an expression does not explain."""

KeyPath = tuple[str, ...]
"""The keys from the document's root to a value, e.g. `("models", "small", "engine")`."""


def nearest_place(places: Mapping[KeyPath, Place], path: KeyPath) -> Place:
    """The place of a key, or for an item of a list that of the nearest key above it."""
    while path not in places:
        path = path[:-1]
    return places[path]


class Converter:
    """Converts the documents of one file. `places` maps each key's path to its location.

    `outside` has each file and plug-in that is not built in: the field, and what it names.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.places: dict[KeyPath, Place] = {}
        self.outside: set[tuple[str, str]] = set()

    def report(self, node: yaml.Node, message: str) -> None:
        """Add a problem at the node's line."""
        self.problems.append(Problem(self._place(node), message))

    def _place(self, node: yaml.Node) -> Place:
        return place_of(node, str(self.file))

    def convert(self, node: yaml.Node, kind: inspect.Type, path: KeyPath) -> Any:  # noqa: ANN401 - any YAML value
        """Return the node's value as `kind`; report a problem and return None if it does not match."""
        check_time()
        if isinstance(kind, inspect.Metadata):
            return self._annotated(node, kind, path)
        if isinstance(kind, inspect.UnionType):
            if _scalar(node) is None:  # an explicit null selects the field's default
                return None
            options = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            is_mapping = isinstance(node, yaml.MappingNode)  # a number or a section, for example
            fitting = [each for each in options if isinstance(each, inspect.StructType) is is_mapping]
            return self.convert(node, (fitting or options)[0], path)
        if isinstance(kind, inspect.StructType):
            return self._struct(node, kind, path)
        if isinstance(kind, inspect.DictType):
            return self._dict(node, kind, path)
        if isinstance(kind, inspect.ListType):
            return self._list(node, kind, path)
        if isinstance(kind, inspect.AnyType):
            return self._plain(node, path)
        return self._leaf(node, kind, path)

    def _annotated(self, node: yaml.Node, kind: inspect.Metadata, path: KeyPath) -> Any:  # noqa: ANN401 - as `convert`
        """The value of a condition, a plug-in's name or a path, which JSON schema cannot check."""
        value = self.convert(node, kind.type, path)
        extra = kind.extra or {}
        if value is not None and extra.get("cel"):
            self._check_condition(node, value)
        if value is not None and "names" in extra and (wanted := extra["names"].fault(value)):
            hint = nearest(value, extra["names"].all())
            self._report_value(node, path, wanted, hint)
            return None
        if value is not None and "names" in extra and value not in extra["names"].built_in:
            self.outside.add((path[-1], value))
        return self._resolved(node, path, value) if value is not None and extra.get("path") else value

    def _check_condition(self, node: yaml.Node, source: str) -> None:
        try:
            Condition(source)
        except ConditionError as error:
            for fault in error.faults:
                place = place_in_scalar(node, str(self.file), fault.line, fault.column)
                self.problems.append(Problem(place, fault.message))

    def _resolved(self, node: yaml.Node, keys: KeyPath, path: str) -> str | None:
        """Resolve a relative path against the folder of the policy file; `builtin:` names stay."""
        if path.startswith("builtin:"):
            return path
        try:
            found = str((self.file.parent / Path(path).expanduser()).resolve())
        except (ValueError, RuntimeError, OSError):  # NUL, half a character, an unknown user, a loop
            self.report(node, f"{'.'.join(keys)} is not a path that a file can have")
            return None
        field = next(key for key in reversed(keys) if not key.isdigit())
        self.outside.add((field, found))
        return found

    def _struct(self, node: yaml.Node, kind: inspect.StructType, path: KeyPath) -> dict[str, Any] | None:
        fields = {field.name: field for field in kind.fields}
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for key, value in self._pairs(node, path):
            seen.add(key.value)
            if key.value not in fields:
                where = f" in {'.'.join(path)}" if path else ""
                self.report(key, f"unknown key{_quoted(key.value)}{where}{nearest(key.value, fields)}")
                continue
            converted = self.convert(value, fields[key.value].type, (*path, key.value))
            if converted is not None:
                values[key.value] = converted
        for name in sorted(name for name, field in fields.items() if field.required and name not in seen):
            if isinstance(node, yaml.MappingNode):
                self.report(node, f"{'.'.join(path)} needs the key {name!r}")
        return values if isinstance(node, yaml.MappingNode) else None

    def _dict(self, node: yaml.Node, kind: inspect.DictType, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in self._pairs(node, path):
            wrong = _wrong_string(key.value, kind.key_type)
            if wrong:
                self.report(key, f"{'.'.join(path)} has the name {key.value!r}, expected {wrong}")
            values[key.value] = self.convert(value, kind.value_type, (*path, key.value))
        if isinstance(node, yaml.MappingNode):
            self._check_length(node, kind, len(values), path)
        return values

    def _list(self, node: yaml.Node, kind: inspect.ListType, path: KeyPath) -> list[Any] | None:
        if not isinstance(node, yaml.SequenceNode):
            hint = "; write it in [brackets]" if isinstance(node, yaml.ScalarNode) else ""
            self.report(node, f"{'.'.join(path)} must be a list, not {_describe(node)}{hint}")
            return None
        values = []
        for number, item in enumerate(node.value):
            place = (*path, str(number))
            self.places[place] = self._place(item)
            values.append(self.convert(item, kind.item_type, place))
        self._check_length(node, kind, len(values), path)
        return values

    def _check_length(
        self, node: yaml.Node, kind: inspect.ListType | inspect.DictType, length: int, path: KeyPath
    ) -> None:
        least, most = kind.min_length or 0, kind.max_length
        if length < least:
            self.report(node, f"{'.'.join(path)} needs at least {least}, not {length}")
        elif most is not None and length > most:
            self.report(node, f"{'.'.join(path)} may have at most {most}, not {length}")

    def _pairs(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Yield a mapping's keys and values, `<<` merged in; report duplicate keys and non-mappings."""
        if not isinstance(node, yaml.MappingNode):
            if _scalar(node) is not None or not path:
                what = ".".join(path) or "a policy document"
                self.report(node, f"{what} must be a mapping of keys to values, not {_describe(node)}")
            elif len(path) > 1:
                self.report(node, f"{'.'.join(path)} is empty; add its keys or remove it")
            return
        seen: dict[str, Place] = {}
        merged: list[tuple[yaml.ScalarNode, yaml.Node]] = []
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                merged += self._merged(value)
            elif not isinstance(key, yaml.ScalarNode) or not key.value:
                self.report(key, f"a key in {'.'.join(path) or 'a policy document'} must be a plain word")
            elif key.value in seen:
                self.report(key, f"key{_quoted(key.value)} is already set at {seen[key.value]}; remove one")
            else:
                seen[key.value] = self.places[(*path, key.value)] = self._place(key)
                yield key, value
        for key, value in merged:
            if key.value not in seen:
                seen[key.value] = self.places[(*path, key.value)] = self._place(key)
                yield key, value

    def _merged(self, node: yaml.Node) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        pairs: list[tuple[yaml.ScalarNode, yaml.Node]] = []
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self.report(source, "'<<' merges mappings; name one by its anchor, as in *it")
                continue
            for key, value in source.value:
                if key.tag == _MERGE_TAG:
                    pairs += self._merged(value)
                elif isinstance(key, yaml.ScalarNode):
                    pairs.append((key, value))
        return pairs

    def _plain(self, node: yaml.Node, path: KeyPath) -> Any:  # noqa: ANN401 - any YAML value
        """The value as JSON would have it, whatever it is."""
        if isinstance(node, yaml.MappingNode):
            return {
                key.value: self._plain(value, (*path, key.value)) for key, value in self._pairs(node, path)
            }
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, path) for item in node.value]
        value = _scalar(node)
        if isinstance(value, yaml.Node):
            self.report(node, f"{'.'.join(path)} has {_describe(node)}; quote it")
            return None
        return value

    def _leaf(self, node: yaml.Node, kind: inspect.Type, path: KeyPath) -> Any:  # noqa: ANN401 - any YAML scalar
        wanted = _wrong_value(_scalar(node), kind)
        field = next(key for key in reversed(path) if not key.isdigit())
        if not wanted:
            if field.endswith("_env") and looks_secret(node.value):
                self.report(
                    node, f"{'.'.join(path)} holds what looks like the secret itself; {_WRITE['_env']}"
                )
            return _scalar(node)
        if field == "origins" and isinstance(node, yaml.ScalarNode):
            wanted = "a scheme and a host, perhaps a port, as browsers send them"
        hint = ""
        if isinstance(kind, inspect.LiteralType) and isinstance(node, yaml.ScalarNode):
            hint = nearest(node.value, [str(v) for v in kind.values])
        elif field == "origins" and isinstance(node, yaml.ScalarNode):
            hint = f"; {origin_remedy(node.value)}"
        elif isinstance(kind, inspect.IntType | inspect.FloatType):
            hint = _number_hint(node, kind)
        elif isinstance(kind, inspect.StrType) and not _is_quoted_wrong(node, kind):
            hint = '; write it in "quotes"'
        elif isinstance(kind, inspect.StrType) and kind.pattern:
            hint = next((f"; {words}" for end, words in _WRITE.items() if field.endswith(end)), "")
        self._report_value(node, path, wanted, hint)
        return None

    def _report_value(self, node: yaml.Node, path: KeyPath, wanted: str, hint: str) -> None:
        field = next(key for key in reversed(path) if not key.isdigit())
        is_shown = not is_secret_field(field) or isinstance(node, yaml.MappingNode | yaml.SequenceNode)
        got = f", not {_describe(node)}" if is_shown else ""
        self.report(node, f"{'.'.join(path)} must be {wanted}{got}{hint if '; known' not in hint else ''}")


def _scalar(node: yaml.Node) -> Any:  # noqa: ANN401 - any YAML scalar
    """Return the value of a plain scalar, or the node itself if it is anything else."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _PLAIN_TAGS:
        return node
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except ValueError:  # an explicit !!int that is not a number
        return node


def _quoted(key: str) -> str:
    """A key as messages show it; one that is not written as keys are may be an API key in the wrong place."""
    return f" {key!r}" if re.fullmatch(r"[a-z][a-z_]*", key) else ""


def _describe(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if node.tag not in _PLAIN_TAGS:
        return "a value with a tag"
    if len(node.value) > 80:
        return f"a text of {len(node.value)} characters"
    text = node.value
    return {"str": repr(text), "null": "null"}.get(_PLAIN_TAGS[node.tag], str(text))


def _wrong_value(value: object, kind: inspect.Type) -> str:
    """Return a description of what was expected, or "" if the value matches."""
    if isinstance(kind, inspect.StrType):
        return _wrong_string(value, kind)
    if isinstance(kind, inspect.BoolType):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(kind, inspect.LiteralType):
        return "" if value in kind.values else "one of " + ", ".join(map(str, kind.values))
    if isinstance(kind, (inspect.IntType, inspect.FloatType)):
        return _wrong_number(value, kind)
    raise AssertionError(f"policies.convert has no rule for {kind!r}")


def _wrong_string(value: object, kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return _wrong_string(value, kind.type)
    assert isinstance(kind, inspect.StrType)
    if not isinstance(value, str):
        return "a string"
    if kind.min_length and len(value) < kind.min_length:
        return "a string that is not empty"
    if kind.max_length and len(value) > kind.max_length:
        return f"at most {kind.max_length} characters"
    if kind.pattern and (not re.search(kind.pattern, value) or value.endswith("\n")):  # `$` lets one pass
        return f"a string of the form {kind.pattern}"
    return ""


def _is_quoted_wrong(node: yaml.Node, kind: inspect.StrType) -> bool:
    """Whether quotes would not help: it is text already, or its characters are no text of this form."""
    return isinstance(_scalar(node), str | None) or bool(_wrong_string(getattr(node, "value", None), kind))


def _number_hint(node: yaml.Node, kind: inspect.IntType | inspect.FloatType) -> str:
    """The number that text means, such as 4GiB, 85% or 1e9, which YAML takes for a number only as 1.0e+9."""
    form = r"([0-9]{1,30}(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,2})?) ?(?:(%)|([KMGT])(i?)B?)?"
    text = _scalar(node)
    found = re.fullmatch(form, text, re.IGNORECASE) if isinstance(text, str) else None
    if found is None:
        return ""
    value = float(found[1]) / (100 if found[2] else 1)
    value *= (1024 if found[4] else 1000) ** (" KMGT".index(found[3].upper()) if found[3] else 0)
    is_whole = isinstance(kind, inspect.IntType)
    if is_whole and (found[2] or not (found[3] or value.is_integer())):
        return ""  # a share of what is not known here, or a part of one
    meant = round(value) if is_whole else round(value, 6)
    return "" if _wrong_number(meant, kind) else f"; write {meant}"


def _wrong_number(value: object, kind: inspect.IntType | inspect.FloatType) -> str:
    whole = isinstance(kind, inspect.IntType)
    noun = "a whole number" if whole else "a number"
    bounds = [(">", kind.gt), (">=", kind.ge), ("<", kind.lt), ("<=", kind.le)]
    expected = " ".join(
        [noun, " and ".join(f"{op} {bound:.12g}" for op, bound in bounds if bound is not None)]
    ).strip()
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return expected
    if not abs(value) < 2**63:  # nor nan; messages between processes hold no more
        return expected if (kind.lt, kind.le) != (None, None) else f"{expected} below 2**63"
    inside = (
        (kind.gt is None or value > kind.gt)
        and (kind.ge is None or value >= kind.ge)
        and (kind.lt is None or value < kind.lt)
        and (kind.le is None or value <= kind.le)
    )
    return "" if inside else expected
